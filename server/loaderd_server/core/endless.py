"""Epochs of iterable datasets: made in one order, once, by iterators that live in workers.

Batch number b is unit b // shards of shard b % shards. Where a shard has ended before others, its later
numbers are holes: they are passed over.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from loaderd_protocol.messages import ShardState
from loaderd_server.core.orders import Cutting
from loaderd_server.core.tasks import Indices

#: More batches than any epoch has.
NO_END = 2**62


class EndlessView:
    """Stands for a RankOrder where there is no order: positions are numbers, of samples nobody knows."""

    __slots__ = ("_batch_size", "batches", "fits", "length")

    def __init__(self, cutting: Cutting) -> None:
        self._batch_size = cutting.batch_size or 1
        #: See Order.
        self.fits = False
        self.batches = NO_END
        self.length = -1

    def end(self, own_size: int, *, drop_last: bool) -> int:
        """Nobody knows before it comes."""
        return NO_END

    def positions(self, batch: int) -> range:
        """The numbers of a batch's samples, were every batch full."""
        return range(batch * self._batch_size, (batch + 1) * self._batch_size)

    def batch_of(self, position: int) -> int:
        """The batch a number lies in."""
        return position // self._batch_size

    @property
    def indices(self) -> Indices:
        """There are none."""
        raise AssertionError("an iterable dataset has no indices")

    def samples(self, positions: Indices | range) -> tuple[Indices, Indices | None]:
        """There are none."""
        raise AssertionError("an iterable dataset has no indices")


@dataclass(slots=True)
class Shard:
    """One iterator: where it is, and in which worker."""

    #: The worker that has it; None before the first unit, and after that worker's end.
    worker: int | None = None
    #: The unit it gives next, as far as the worker that has it is concerned.
    at: int = 0
    #: How many units it has; None while that is not known.
    units: int | None = None
    #: The dataset's state before unit ``state_unit``.
    state: bytes = b""
    state_unit: int = 0


@dataclass(slots=True)
class Producer:
    """Makes the batches of one epoch in their order."""

    shards: list[Shard]
    #: The next batch to be made.
    next: int
    #: How many batches there are, once every shard has ended.
    end: int | None = None

    @classmethod
    def at(cls, batch: int, shards: int, states: Iterable[ShardState]) -> Producer:
        """One that begins at a batch, by the states of its shards where there are some."""
        made = cls([Shard() for _ in range(shards)], batch)
        for known in states:
            if 0 <= known.shard < shards and 0 <= known.unit <= made.first_unit(known.shard, batch):
                shard = made.shards[known.shard]
                shard.state, shard.state_unit = known.state, known.unit
        return made

    def first_unit(self, shard: int, batch: int) -> int:
        """The first unit of a shard that lies at or behind a batch."""
        return max(0, -(-(batch - shard) // len(self.shards)))

    def number_of_shard(self, batch: int) -> int:
        """The number of the shard that a batch comes from."""
        return batch % len(self.shards)

    def shard_of(self, batch: int) -> Shard:
        """The shard that a batch comes from."""
        return self.shards[self.number_of_shard(batch)]

    def unit_of(self, batch: int) -> int:
        """Which of its shard's batches it is."""
        return batch // len(self.shards)

    def is_hole(self, batch: int) -> bool:
        """Whether the batch's shard ended before it."""
        units = self.shard_of(batch).units
        return units is not None and self.unit_of(batch) >= units

    def is_gone(self, batch: int, entries: Container[int]) -> bool:
        """Whether a batch was made and is not kept."""
        return batch < self.next and batch not in entries and not self.is_hole(batch)

    def has_all_from(self, batch: int, entries: Container[int]) -> bool:
        """Whether a trainer that begins there would miss nothing."""
        return not any(self.is_gone(b, entries) for b in range(batch, self.next))

    def take_next(self) -> int:
        """The next batch to be made; it is being made from now on."""
        batch = self.peek()
        self.next = batch + 1
        return batch

    def peek(self) -> int:
        """The next batch to be made, holes passed over."""
        batch = self.next
        while (self.end is None or batch < self.end) and self.is_hole(batch):
            batch += 1
        return batch

    def ended(self, batch: int, units: int) -> None:
        """The shard of a batch has no more than so many units."""
        self.shard_of(batch).units = units
        known = [shard.units for shard in self.shards]
        if any(units is None for units in known):
            return
        lasts = [(units - 1) * len(known) + place + 1 for place, units in enumerate(known) if units]
        self.end = max(lasts, default=0)

    def made(self, batch: int, state: bytes) -> None:
        """A batch was made; ``state`` is the dataset's behind it."""
        shard, unit = self.shard_of(batch), self.unit_of(batch)
        if state and unit + 1 > shard.state_unit:
            shard.state, shard.state_unit = state, unit + 1
