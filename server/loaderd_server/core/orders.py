"""The order of an epoch, and what of it a rank sees: positions, batches, rows. All by arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loaderd_server.core.tasks import Indices


@dataclass(frozen=True, slots=True)
class Order:
    """An epoch's order as a worker made it, before it is cut into ranks (see OrderDone)."""

    indices: Indices
    occurrences: Indices | None
    cuts: Indices | None


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a stream cuts an order; ``batch_size`` is None where a batch sampler cuts it."""

    batch_size: int | None
    drop_last: bool


def fault_of(order: Order, cutting: Cutting) -> str | None:
    """What is wrong with an order that a sampler gave, or None."""
    length = len(order.indices)
    if order.occurrences is not None and len(order.occurrences) != length:
        return f"order of {length} indices has {len(order.occurrences)} occurrences"
    if order.cuts is None:
        return (
            None if cutting.batch_size else "the sampler gave no batches and no batch_size is set"
        )
    cuts = order.cuts
    if len(cuts) == 0 or cuts[0] != 0 or cuts[-1] != length or bool(np.any(np.diff(cuts) < 0)):
        return f"the batches of the order do not cover its {length} indices"
    return None


class RankOrder:
    """What one rank reads of an epoch: its positions in order, cut into batches.

    ``positions`` count from 0 in the rank's own order; ``indices[position]`` is the dataset's.
    """

    __slots__ = ("_batch_size", "_cuts", "batches", "indices", "length", "occurrences")

    def __init__(self, order: Order, cutting: Cutting, rank: int, world_size: int) -> None:
        self._batch_size = 0
        self._cuts: Indices | None = None
        if order.cuts is not None:
            self._deal_batches(order, order.cuts, cutting, rank, world_size)
        else:
            self._deal_indices(order, cutting, rank, world_size)
        self.length = len(self.indices)

    def _deal_indices(self, order: Order, cutting: Cutting, rank: int, world_size: int) -> None:
        assert cutting.batch_size is not None  # fault_of looked
        self.indices = order.indices[rank::world_size]
        occurrences = order.occurrences
        self.occurrences = None if occurrences is None else occurrences[rank::world_size]
        self._batch_size = cutting.batch_size
        whole, rest = divmod(len(self.indices), cutting.batch_size)
        self.batches = whole + (1 if rest and not cutting.drop_last else 0)

    def _deal_batches(
        self, order: Order, cuts: Indices, cutting: Cutting, rank: int, world_size: int
    ) -> None:
        dealt = _dealt(len(cuts) - 1, cutting.drop_last, rank, world_size)
        self.batches = len(dealt)
        if world_size == 1:
            self.indices, self.occurrences, self._cuts = order.indices, order.occurrences, cuts
            return
        pieces = [np.arange(cuts[batch], cuts[batch + 1]) for batch in dealt]
        rows = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
        self.indices = order.indices[rows]
        self.occurrences = None if order.occurrences is None else order.occurrences[rows]
        self._cuts = np.concatenate(
            ([0], np.cumsum([len(piece) for piece in pieces], dtype=np.int64))
        )

    def positions(self, batch: int) -> range:
        """The positions of a batch."""
        if self._cuts is not None:
            return range(int(self._cuts[batch]), int(self._cuts[batch + 1]))
        start = batch * self._batch_size
        return range(start, min(start + self._batch_size, self.length))

    def batch_of(self, position: int) -> int:
        """The batch a position lies in; ``batches`` or more where drop_last leaves it out."""
        if self._cuts is not None:
            return int(np.searchsorted(self._cuts, position, side="right")) - 1
        return position // self._batch_size

    def samples(self, positions: Indices | range) -> tuple[Indices, Indices | None]:
        """Dataset indices and occurrences at these positions, as arrays of their own."""
        where: Indices | slice = (
            slice(positions.start, positions.stop) if isinstance(positions, range) else positions
        )
        indices = np.ascontiguousarray(self.indices[where])
        if self.occurrences is None:
            return indices, None
        return indices, np.ascontiguousarray(self.occurrences[where])


def _dealt(batches: int, drop_last: bool, rank: int, world_size: int) -> list[int]:
    """Which batches of a batch sampler a rank gets: every world_size-th, the tail as asked.

    A tail that does not divide is dropped, or padded by going round to the first batches again,
    as DistributedSampler does with samples.
    """
    if batches == 0:
        return []
    each = batches // world_size if drop_last else -(-batches // world_size)
    return [(rank + turn * world_size) % batches for turn in range(each)]
