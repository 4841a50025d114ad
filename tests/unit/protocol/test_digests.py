"""Digests: equal where everything is, different where anything is not, on both sides alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.case_datasets import Loose, Opaque, Pair, Point, leaves, traps

from loaderd_protocol.digests import Digester, tensors_of
from loaderd_server.audit.collation import collate

TRAINER, REFERENCE = Digester(tensors_of(torch)), Digester(tensors_of(torch))


@dataclasses.dataclass
class Copied:
    """Has the fields of Pair."""

    left: torch.Tensor
    right: str


SAMPLES = [
    {"x": torch.tensor([i, 2 * i]), "name": f"n{i}", "deep": [(i, None), Pair(torch.ones(1), "r")]}
    for i in range(5)
]

DIFFERENT: list[tuple[Any, Any]] = [
    (torch.tensor([1]), torch.tensor([2])),
    (torch.tensor([1]), torch.tensor([1], dtype=torch.int32)),
    (torch.zeros(4, dtype=torch.int32), torch.zeros(4)),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.zeros(0, 3), torch.zeros(0, 4)),
    (torch.zeros(2), np.zeros(2, dtype=np.float32)),
    (np.zeros(2, dtype="<i2"), np.zeros(2, dtype=">i2")),
    (0.0, -0.0),
    (1, True),
    (1, 1.0),
    (1.0, 1 + 0j),
    ("a", b"a"),
    (["ab", "c"], ["a", "bc"]),
    ([["a"], "b"], [["a", "b"]]),
    ((1, 2), [1, 2]),
    ({"a": 1}, {"b": 1}),
    ({1: "x"}, {"1": "x"}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1, 2}, {1, 3}),
    (np.float32(1), np.float64(1)),
    (Loose(1, 2), (1, 2)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=lambda item: repr(item)[:30])
def test_what_differs_in_anything_has_another_digest(one: Any, other: Any) -> None:
    assert TRAINER.whole(one) != TRAINER.whole(other)
    assert TRAINER.whole(one) == TRAINER.whole(one)


@pytest.mark.parametrize("make", [leaves, traps])
def test_both_sides_digest_alike(make: Callable[[], Any]) -> None:
    assert TRAINER.whole(make()) == REFERENCE.whole(make())


def test_strides_and_the_names_of_classes_do_not_count() -> None:
    tensor = torch.arange(6).reshape(2, 3)
    assert TRAINER.whole(tensor.t()) == TRAINER.whole(tensor.t().contiguous())
    assert TRAINER.whole(Pair(tensor, "r")) == TRAINER.whole(Copied(tensor, "r"))


def test_the_order_of_a_set_does_not_count() -> None:
    assert TRAINER.whole({*"abcdef"}) == TRAINER.whole({*"fedcba"})


def test_a_row_has_its_digest_whatever_batch_it_is_in() -> None:
    rows = TRAINER.rows(collate(SAMPLES))
    assert len(set(rows)) == 5
    assert TRAINER.rows(collate(SAMPLES[1:3])) == rows[1:3]
    assert TRAINER.rows(collate(SAMPLES[::-1])) == rows[::-1]


def test_one_byte_of_one_row_changes_that_digest_alone() -> None:
    batch = collate(SAMPLES)
    before = TRAINER.rows(batch)
    batch["x"][3, 1] += 1
    after = TRAINER.rows(batch)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, True, False, True]


def test_records_have_rows_field_by_field() -> None:
    points = [Point(torch.tensor([i]), torch.tensor(i)) for i in range(3)]
    assert len(set(TRAINER.rows(collate(points)))) == 3


def test_parts_that_differ_in_their_rows_are_named() -> None:
    with pytest.raises(ValueError, match=r"batch\['a'\] has 2, batch\['b'\]\[0\] has 3"):
        TRAINER.rows({"a": torch.zeros(2), "b": [torch.zeros(3)]})


def test_a_tensor_without_dimensions_has_no_rows() -> None:
    with pytest.raises(ValueError, match=r"batch\[0\] is a tensor without dimensions"):
        TRAINER.rows([torch.tensor(1)])


@pytest.mark.parametrize("digest", [TRAINER.whole, TRAINER.rows])
def test_what_cannot_travel_is_named(digest: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="Opaque"):
        digest({"odd": Opaque()})
