"""The order of an epoch, and what of it a rank sees: positions, batches, rows. All by arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loaderd_protocol.messages import Dealt
from loaderd_server.core.tasks import Indices

_POSITION_BITS = 32


@dataclass(frozen=True, slots=True)
class Inverse:
    """At which position of an order a sample stands: ``of`` as OrderDone has it."""

    of: npt.NDArray[np.int32] | Indices
    #: A sample may stand in the order more than once: ``of`` are sorted keys.
    repeats: bool

    def positions(self, samples: Indices, first: int) -> Indices:
        """The position of each sample, the next from ``first`` on where it stands there more than once.

        Below ``first``, or -1, where there is none.
        """
        if not self.repeats:
            return self.of[samples].astype(np.int64)
        if not len(self.of):
            return np.full(len(samples), -1, np.int64)
        at = np.searchsorted(self.of, (samples << _POSITION_BITS) + first)
        keys = self.of[np.minimum(at, len(self.of) - 1)]
        is_there = (keys >> _POSITION_BITS == samples) & (at < len(self.of))
        return np.where(is_there, keys & ((1 << _POSITION_BITS) - 1), -1)


@dataclass(frozen=True, slots=True)
class Order:
    """An epoch's order as a worker made it, before it is cut into ranks (see OrderDone).

    ``inverse`` is None where nobody asks it. ``fits``: it has no index that the dataset has not, for all
    that is known.
    """

    indices: Indices
    occurrences: Indices | None
    cuts: Indices | None
    inverse: Inverse | None = None
    fits: bool = False


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
    ``dealt``: parts of the epoch that earlier world sizes had; this is then the rank's share of the rest.
    """

    __slots__ = (
        "_batch_size", "_cuts", "batches", "fits", "indices", "inverse", "length", "occurrences",
    )  # fmt: skip

    def __init__(
        self,
        order: Order,
        cutting: Cutting,
        rank: int,
        world_size: int,
        dealt: tuple[Dealt, ...] = (),
    ) -> None:
        self._batch_size = cutting.batch_size or 0
        self._cuts: Indices | None = None
        units = len(order.indices) if order.cuts is None else len(order.cuts) - 1
        share = _share(units, cutting.drop_last, rank, world_size, dealt)
        if order.cuts is not None:
            self._take_batches(order, order.cuts, share)
        else:
            self.indices = order.indices[share]
            self.occurrences = None if order.occurrences is None else order.occurrences[share]
        self.length = len(self.indices)
        self.fits = order.fits
        #: Of the order; None where the rank's share of it is no arithmetic.
        is_plain = not dealt and (order.cuts is None or world_size == 1)
        self.inverse = order.inverse if is_plain else None
        #: With the last one, however short; who wants no short one ends before it (``end``).
        self.batches = self.end(0, drop_last=False)

    def _take_batches(self, order: Order, cuts: Indices, share: Indices | slice) -> None:
        if isinstance(share, slice):
            self.indices, self.occurrences, self._cuts = order.indices, order.occurrences, cuts
            return
        pieces = [np.arange(cuts[batch], cuts[batch + 1]) for batch in share]
        rows = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
        self.indices = order.indices[rows]
        self.occurrences = None if order.occurrences is None else order.occurrences[rows]
        self._cuts = np.concatenate(
            ([0], np.cumsum([len(piece) for piece in pieces], dtype=np.int64))
        )

    def end(self, own_size: int, *, drop_last: bool) -> int:
        """The batch before which a trainer is done that cuts to ``own_size`` rows (0: as they are)."""
        if self._cuts is not None:
            return len(self._cuts) - 1
        size = own_size or self._batch_size
        needed = self.length // size * size if drop_last else self.length
        return -(-needed // self._batch_size)

    def positions(self, batch: int) -> range:
        """The positions of a batch."""
        if self._cuts is not None:
            return range(int(self._cuts[batch]), int(self._cuts[batch + 1]))
        start = batch * self._batch_size
        return range(start, min(start + self._batch_size, self.length))

    def batch_of(self, position: int) -> int:
        """The batch a position lies in."""
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


def _share(
    units: int, drop_last: bool, rank: int, world_size: int, dealt: tuple[Dealt, ...]
) -> Indices | slice:
    """Which units (samples, or batches of a batch sampler) of an epoch a rank gets."""
    if not dealt:
        return slice(None) if world_size == 1 else deal(units, drop_last, rank, world_size)
    left = np.arange(units, dtype=np.int64)
    for part in dealt:
        left = np.delete(left, _given(len(left), drop_last, part))
    return left[deal(len(left), drop_last, rank, world_size)]


def _given(units: int, drop_last: bool, part: Dealt) -> Indices:
    """Which units went to the ranks of an earlier world size."""
    each = units // part.world_size if drop_last else -(-units // part.world_size)
    turns, ranks = np.divmod(np.arange(each * part.world_size, dtype=np.int64), part.world_size)
    counts = np.array([min(count, each) for count in part.counts], dtype=np.int64)
    return np.flatnonzero(turns < counts[ranks]) % max(1, units)


def deal(units: int, drop_last: bool, rank: int, world_size: int) -> Indices:
    """Every world_size-th unit, as torch's DistributedSampler deals samples.

    What does not divide is dropped, or padded by going round to the first units again.
    """
    each = units // world_size if drop_last else -(-units // world_size)
    turns = np.arange(each, dtype=np.int64)
    return (rank + turns * world_size) % max(1, units)
