"""Values keep their types through msgpack; layouts survive and refuse garbage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_protocol.errors import EncodingError, ProtocolError
from loaderd_protocol.layout import (
    Entries,
    Fields,
    Items,
    Node,
    Tensor,
    Value,
    align,
    decode_layout,
    encode_layout,
    extent,
)
from loaderd_protocol.values import decode_value, encode_value, is_value

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**63, 2**80),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters()),
    st.binary(),
)
hashable = st.recursive(atoms, lambda inner: st.tuples(inner, inner), max_leaves=4)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner), st.dictionaries(hashable, inner), st.frozensets(hashable)
    ),
    max_leaves=20,
)


def same(left: object, right: object) -> bool:
    return type(left) is type(right) and repr(left) == repr(right)


@given(values)
def test_values_come_out_as_they_went_in(value: object) -> None:
    assert is_value(value)
    returned = decode_value(encode_value(value))
    assert returned == value
    if not isinstance(value, frozenset | dict):
        assert type(returned) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        (1, [2, (3,)]),
        {1: "int key", (1, 2): "tuple key", b"b": None},
        2**64,
        -(2**63) - 1,
        10**40,
        "lone \ud800 surrogate",
        np.float32(1.5),
        np.float64(2.5),
        np.int64(-3),
        np.bool_(True),
        np.str_("text"),
        np.str_(""),
        np.bytes_(b""),
        np.datetime64(3, "s"),
        {1, 2},
        float("inf"),
    ],
)
def test_msgpacks_traps_keep_value_and_type(value: object) -> None:
    assert is_value(value)
    assert same(decode_value(encode_value(value)), value)


#: A numpy scalar whose dtype's name, which is all that travels, does not tell its fields.
RECORD = np.zeros(1, dtype=[("a", np.int32), ("b", np.float32)])[0]


class Celsius(float):
    """A subclass that must not silently become its parent."""


@pytest.mark.parametrize(
    "value", [object(), Celsius(3), bytearray(b"x"), [lambda: 0], {1: object()}, RECORD]
)
def test_what_cannot_be_carried_exactly_is_no_value(value: object) -> None:
    assert not is_value(value)


def test_encoding_what_cannot_be_carried_names_its_type() -> None:
    with pytest.raises(EncodingError, match=r"Celsius cannot travel"):
        encode_value([Celsius(3)])
    with pytest.raises(EncodingError, match=r"numpy scalar of dtype .*'a'"):
        encode_value(RECORD)


def test_nesting_beyond_msgpack_is_an_error_not_a_crash() -> None:
    deep: list[object] = []
    for _ in range(3000):
        deep = [deep]
    assert not is_value(deep)
    with pytest.raises(EncodingError):
        encode_value(deep)


@given(st.binary(max_size=100))
def test_garbage_values_are_protocol_errors(data: bytes) -> None:
    for read in (decode_value, decode_layout):
        try:
            read(data)
        except ProtocolError:
            continue


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
tensors = st.builds(
    Tensor, st.just("float32"), shapes, st.integers(0, 2**40), st.one_of(st.none(), shapes)
)
leaves: st.SearchStrategy[Node] = st.one_of(tensors, st.builds(Value, st.integers(0, 10)))


def _inner(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    children = st.lists(nodes, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Items, st.sampled_from(["list", "tuple", "m:C"]), children),
        children.map(lambda c: Entries("dict", tuple(range(len(c))), c)),
        children.map(lambda c: Fields("m:P", False, tuple(f"f{i}" for i in range(len(c))), c)),
    )


@given(st.recursive(leaves, _inner, max_leaves=8))
def test_layouts_come_out_as_they_went_in(root: Node) -> None:
    assert decode_layout(encode_layout(root)) == root


@pytest.mark.parametrize(
    "plain", [None, [], ["t"], ["t", "f", (1,), -1.0, None, False], ["t", "f", (-1,), 0, None, False],
              ["i", "list", [["x"]]], ["e", "dict", [1], []], ["v", "0"]],
)  # fmt: skip
def test_a_wrong_layout_is_a_protocol_error(plain: object) -> None:
    with pytest.raises(ProtocolError, match="not a layout"):
        decode_layout(encode_value(plain))


def test_extent_counts_from_first_to_last_element() -> None:
    assert extent((2, 3), None) == 6
    assert extent((2, 3), (1, 2)) == 6
    assert extent((4, 3), (0, 1)) == 3
    assert extent((0, 3), (5, 1)) == 0
    assert extent((), ()) == 1
    assert [align(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
