"""Fields of records that may be absent, or are arrays: as they went in, or an error that names them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.records import from_array, to_array


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    rows: npt.NDArray[np.int64]
    short: npt.NDArray[np.int32] | None = None
    inner: Inner | None = None
    text: str | None = None


@dataclass(frozen=True)
class Ambiguous:
    value: int | str


def test_what_may_be_absent_comes_through_there_and_absent() -> None:
    rows = np.array([3, -1, 2**62])
    full = from_array(Outer, to_array(Outer(rows, np.arange(3, dtype=np.int32), Inner(7), "x")))
    np.testing.assert_array_equal(full.rows, rows, strict=True)
    assert full.short is not None
    np.testing.assert_array_equal(full.short, np.arange(3, dtype=np.int32), strict=True)
    assert (full.inner, full.text) == (Inner(7), "x")
    bare = from_array(Outer, to_array(Outer(rows[:0])))
    assert (len(bare.rows), bare.short, bare.inner, bare.text) == (0, None, None, None)


@pytest.mark.parametrize(
    ("array", "text"),
    [
        ([[1, 2]], "Outer.rows: expected bytes, got list"),
        ([None], "Outer.rows: expected bytes, got NoneType None"),
        ([b"seven b"], "Outer.rows: buffer size must be a multiple of element size"),
        ([b"", b"", 5], "Inner needs at least 1 fields, got int 5"),
        ([b"", None, None, 5], "Outer.text: expected str, got int 5"),
    ],
)
def test_what_is_something_else_is_an_error_that_names_it(array: list[object], text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        from_array(Outer, array)


def test_a_field_of_two_kinds_is_no_record() -> None:
    with pytest.raises(ValueError, match="too many values"):
        from_array(Ambiguous, [1])
