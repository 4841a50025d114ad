"""Own batch sizes: ranges of positions out of slots, held against plain slices of the order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderd.batch import Recipe
from loaderd.cutting import Cutter
from loaderd_protocol.errors import BatchError
from loaderd_protocol.messages import FailedSample

RECIPE = Recipe((), lambda leaves: tuple(leaves), "tensor and names")


def slot(positions: list[int]) -> tuple[Recipe, list[Any]]:
    """A slot whose rows tell their positions."""
    return RECIPE, [torch.tensor(positions), [f"p{position}" for position in positions]]


def rows_of(batch: Any) -> list[int]:
    numbers, names = batch
    assert [f"p{number}" for number in numbers.tolist()] == names
    found: list[int] = numbers.tolist()
    return found


def run(
    cutter: Cutter, made: int, length: int, failed: set[int], broken: set[int], substitutes: bool
) -> list[list[int]]:
    """Feeds slots as they are asked for; the batches that come out, [] for one passed over."""
    came: list[list[int]] = []
    batch = cutter.first_slot
    while not cutter.is_at_end:
        if cutter.is_complete:
            taken, rows = cutter.take()
            came.append(rows_of(taken) if rows else [])
            continue
        positions = list(range(batch * made, min(batch * made + made, length)))
        assert positions, "asked for a slot behind the end"
        if batch in broken:
            cutter.skip(batch)
        else:
            out = tuple(FailedSample(p, p, "bad") for p in positions if p in failed)
            good = positions if substitutes else [p for p in positions if p not in failed]
            cutter.came(batch, len(good), out, slot(good) if good else None)
        batch += 1
    return came


@settings(deadline=None)
@given(
    size=st.integers(1, 30), made=st.integers(1, 12), length=st.integers(0, 70),
    begin=st.integers(0, 70), drop_last=st.booleans(), substitutes=st.booleans(),
    failed=st.sets(st.integers(0, 70), max_size=20), broken=st.sets(st.integers(0, 20), max_size=4),
)  # fmt: skip
def test_batches_are_slices_of_the_order_but_for_what_failed(
    size: int, made: int, length: int, begin: int, drop_last: bool, substitutes: bool,
    failed: set[int], broken: set[int],
) -> None:  # fmt: skip
    begin = min(begin, length)
    cutter = Cutter(size, made, length, begin, drop_last=drop_last)
    wanted = []
    for start in range(begin, length, size):
        positions = list(range(start, min(start + size, length)))
        if drop_last and len(positions) < size:
            continue
        if {position // made for position in positions} & broken:
            continue
        wanted.append([p for p in positions if substitutes or p not in failed])
    assert run(cutter, made, length, failed, broken, substitutes) == wanted


def test_a_batch_within_a_slot_is_a_view_and_one_across_two_a_copy() -> None:
    cutter = Cutter(2, 3, 6, 0, drop_last=False)
    first, second = slot([0, 1, 2]), slot([3, 4, 5])
    cutter.came(0, 3, (), first)
    within, _ = cutter.take()
    assert within[0].data_ptr() == first[1][0].data_ptr()
    assert not cutter.is_complete
    cutter.came(1, 3, (), second)
    across, rows = cutter.take()
    assert (rows_of(across), rows) == ([2, 3], 2)
    last, _ = cutter.take()
    assert last[0].data_ptr() == second[1][0][1:].data_ptr()
    assert cutter.is_at_end


def test_arrays_are_cut_and_joined_as_tensors_are() -> None:
    cutter = Cutter(2, 1, 2, 0, drop_last=False)
    for batch in range(2):
        cutter.came(batch, 1, (), (RECIPE, [np.array([[batch]]), [batch]]))
    (array, numbers), _ = cutter.take()
    assert array.tolist() == [[0], [1]]
    assert numbers == [0, 1]


@pytest.mark.parametrize("leaf", [torch.zeros(3), [1, 2, 3], 7, "ab"])
def test_what_has_not_one_entry_a_row_cannot_be_cut(leaf: Any) -> None:
    cutter = Cutter(2, 2, 4, 0, drop_last=False)
    with pytest.raises(BatchError, match=r"cannot be cut.*Leave batch_size out"):
        cutter.came(0, 2, (), (RECIPE, [leaf]))


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ((RECIPE, [torch.zeros(1, 5)]), r"rows differ.*\(4,\) and \(5,\)"),
        ((RECIPE._replace(structure="other"), [torch.zeros(1, 4)]), "structures differ"),
    ],
)
def test_slots_that_are_not_alike_are_not_joined(second: Any, says: str) -> None:
    cutter = Cutter(2, 1, 2, 0, drop_last=False)
    cutter.came(0, 1, (), (RECIPE, [torch.zeros(1, 4)]))
    cutter.came(1, 1, (), second)
    with pytest.raises(BatchError, match=says):
        cutter.take()
