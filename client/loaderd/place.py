"""Where a trainer is in a stream, as it goes into a checkpoint and comes out of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from loaderd import arguments
from loaderd_protocol.messages import MOST_INTEGER, Dealt, FailedSample, ShardState, Where

Begin = Literal["begin", "live"] | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in an epoch, by what this trainer was given before it.

    ``samples`` counts positions of its own order: those of samples that were left out as failed count
    too. ``batches`` counts what was cut from them, and is what counts where the sampler makes batches.
    """

    epoch: int = 0
    samples: int = 0
    batches: int = 0
    where: Where = Where.EXACT
    #: Parts of the epoch that went to other world sizes; ``samples`` counts in the rest.
    dealt: tuple[Dealt, ...] = ()
    #: Positions that were reported as failed so far.
    failed: tuple[int, ...] = ()
    #: Batches of a queue that this trainer was given, as pairs (first, last + 1).
    done: tuple[int, ...] = ()
    #: An iterable dataset's own, of each shard.
    states: tuple[ShardState, ...] = ()


def first_place(start: Begin | None, mode: str, batch_size: int) -> Place:
    """Where ``connect(start=...)`` begins; ``batch_size`` is the trainer's own, 0 where none is."""
    if start == "live" or (start is None and mode == "queue"):
        return Place(where=Where.LIVE)
    if start is None or start == "begin":
        return Place()
    epoch, batch = arguments.start(start)
    # A place behind every epoch is refused by the daemon, in words; it must get there.
    return Place(epoch, min(batch * batch_size, MOST_INTEGER), batch)


class Ranges:
    """Whole numbers, few of them far apart, as ranges."""

    def __init__(self, bounds: tuple[int, ...] = ()) -> None:
        pairs = zip(bounds[::2], bounds[1::2], strict=True)
        self._ranges = [[first, end] for first, end in pairs]

    def add(self, number: int) -> None:
        """Adds one; cheap where it is next to the last one added."""
        for known in reversed(self._ranges):
            if known[0] <= number < known[1]:
                return
            if number == known[1]:
                known[1] += 1
                return
            if number == known[0] - 1:
                known[0] -= 1
                return
        self._ranges.append([number, number + 1])

    def bounds(self) -> tuple[int, ...]:
        """The ranges as (first, last + 1, first, last + 1, ...), ascending, none touching another."""
        merged: list[list[int]] = []
        for first, end in sorted(map(tuple, self._ranges)):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([first, end])
        self._ranges = merged
        return tuple(bound for pair in merged for bound in pair)


class Progress:
    """How far an iterator is: shared with whoever must tell the daemon, or a checkpoint."""

    __slots__ = (
        "_done", "_failed", "_origin", "batches", "epoch", "given", "is_finished", "iteration",
        "samples", "states",
    )  # fmt: skip

    def __init__(self, place: Place) -> None:
        self._origin = place
        self.epoch = place.epoch
        self.samples = place.samples
        self.batches = place.batches
        self.states = {known.shard: known for known in place.states}
        self._failed = list(place.failed)
        self._done = Ranges(place.done)
        self.is_finished = False
        #: The iteration it runs as, and how much of what came for that was given out.
        self.iteration = 0
        self.given = 0

    @property
    def is_to_be_found(self) -> bool:
        """Whether the daemon is to tell where it begins."""
        return self._origin.where is Where.LIVE

    def found(self, epoch: int, samples: int, batches: int) -> None:
        """Where the daemon put a trainer that joined the others."""
        self._origin = Place(epoch)
        self.epoch, self.samples, self.batches = epoch, samples, batches

    def report(self, failed: tuple[FailedSample, ...]) -> None:
        """Samples that were left out of what was given."""
        self._failed += [sample.position for sample in failed]

    def was_given(self, batch: int) -> None:
        """A batch of a queue was."""
        self._done.add(batch)

    def place(self) -> Place:
        """The place as of what was given out."""
        if self.is_finished:
            return Place(self.epoch + 1)
        origin = self._origin
        return Place(
            self.epoch, self.samples, self.batches, origin.where, origin.dealt,
            tuple(self._failed), self._done.bounds(), tuple(self.states.values()),
        )  # fmt: skip
