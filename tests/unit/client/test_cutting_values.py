"""Own batch sizes of batches with values: a tuple of strings has rows as a list of them has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.making import Bench

from loaderd.batch import open_slot
from loaderd.cutting import Cutter
from loaderd_protocol.errors import BatchError
from loaderd_protocol.messages import Announce
from loaderd_server.core.tasks import BatchDone


class Named:
    """``dataset[i]`` is a tuple with a string in it."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        return torch.tensor(index), f"name {index}"


def cut(size: int, length: int = 8, made: int = 4) -> list[Any]:
    """All batches of ``size`` of a stream made in fours."""
    bench = Bench(Named())
    cutter = Cutter(size, made, length, 0, drop_last=False)
    batches = []
    for number in range(length // made):
        done = bench.do(range(number * made, (number + 1) * made))
        assert isinstance(done, BatchDone)
        announce = Announce(
            0, 0, 0, number, 0, 0, 0, 0, done.size_bytes, made, done.layout,
            done.tail_offset, done.tail_bytes,
        )  # fmt: skip
        slot = bench.slot[: done.size_bytes].copy()
        cutter.came(number, made, (), open_slot(slot, announce, "torch"))
        while cutter.is_complete:
            batches.append(cutter.take()[0])
    return batches


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_a_tuples_strings_are_cut_with_its_tensors(size: int) -> None:
    batches = cut(size)
    assert [index for batch in batches for index in batch[0].tolist()] == list(range(8))
    assert [name for batch in batches for name in batch[1]] == [f"name {i}" for i in range(8)]
    assert {type(batch[1]) for batch in batches} == {tuple}


def test_a_value_that_has_not_one_entry_a_row_is_refused() -> None:
    recipe_and_leaves: Any = (None, [("a", "b", "c")])
    with pytest.raises(BatchError, match="it has a tuple that has not one entry a row"):
        Cutter(2, 4, 8, 0, drop_last=False).came(0, 4, (), recipe_and_leaves)
