"""What the reference says of an epoch, and what of it a trainer must be given. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """A sequence of a stream: its order's seed, and which rank of how many reads it."""

    seed: int
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True, slots=True)
class ReferenceRequest:
    """Asks for one epoch; ``failed``: positions that the loader reported as left out."""

    sequence: SequenceKey
    epoch: int
    failed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceBatch:
    """A batch as the stream cuts it, from position ``first`` on.

    ``indices``: the dataset's, of each position. ``digests``: of each position, "" for one that is
    left out; or one of the whole batch, or none where it failed, which is then in ``failure``.
    """

    first: int
    indices: tuple[int, ...]
    digests: tuple[str, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class EpochReference:
    """An epoch of a sequence, made in one process without a daemon.

    ``drawn``: length of the whole order, before it is dealt to ranks; ``distinct`` indices are in
    it, the commonest ``most_often`` times. ``left_out``: samples that failed here and were not
    reported by the loader, in words.
    """

    samples: int
    drawn: int
    distinct: int
    most_often: int
    batches: tuple[ReferenceBatch, ...]
    left_out: tuple[str, ...] = ()

    @property
    def is_each_once(self) -> bool:
        """Whether the order holds each index of the dataset once."""
        return self.drawn == self.distinct == self.samples


@dataclass(frozen=True, slots=True)
class Unit:
    """A row (or a whole batch) that must come: ``position`` counts rows, or batches."""

    digest: str
    index: int
    position: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What a trainer must be given in an epoch: batches of units, in order, none of them empty.

    ``errors``: batches it must be told of as failed, as the reference failed there too.
    """

    batches: tuple[tuple[Unit, ...], ...]
    errors: tuple[str, ...] = ()

    @property
    def units(self) -> tuple[Unit, ...]:
        """All units, in order."""
        return tuple(unit for batch in self.batches for unit in batch)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a trainer cuts: ``size`` is its own batch size, ``made_size`` the stream's.

    Both are None where a batch sampler cuts. ``whole``: digests are of whole batches.
    """

    size: int | None
    made_size: int | None
    drop_last: bool
    whole: bool = False


def expect(reference: EpochReference, cut: Cut) -> Expected:
    """What a trainer must be given of an epoch."""
    made = _without_last(reference.batches, cut)
    errors = tuple(batch.failure for batch in made if batch.failure)
    if cut.whole:
        wholes = [
            (Unit(batch.digests[0], batch.indices[0], number),)
            for number, batch in enumerate(made)
            if batch.digests
        ]
        return Expected(tuple(wholes), errors)
    batches = []
    for start, stop in _bounds(made, cut):
        units = _rows(made, start, stop)
        if units:
            batches.append(units)
    return Expected(tuple(batches), errors)


def _without_last(made: tuple[ReferenceBatch, ...], cut: Cut) -> tuple[ReferenceBatch, ...]:
    """``drop_last`` counts in the trainer's size; a stream's batch that none of its rows needs goes."""
    if not made or cut.size is None or not cut.drop_last:
        return made
    length = made[-1].first + len(made[-1].indices)
    end = length // cut.size * cut.size
    return tuple(batch for batch in made if batch.first < end)


def _bounds(made: tuple[ReferenceBatch, ...], cut: Cut) -> list[tuple[int, int]]:
    if not made:
        return []
    length = made[-1].first + len(made[-1].indices)
    if cut.size is None or (cut.size == cut.made_size and not cut.drop_last):
        return [(batch.first, batch.first + len(batch.indices)) for batch in made]
    end = length // cut.size * cut.size if cut.drop_last else length
    return [(start, min(start + cut.size, end)) for start in range(0, end, cut.size)]


def _rows(made: tuple[ReferenceBatch, ...], start: int, stop: int) -> tuple[Unit, ...]:
    """The good rows of [start, stop); none where one of the stream's batches in it failed."""
    units: list[Unit] = []
    for batch in _touched(made, start, stop):
        if batch.failure:
            return ()
        for offset, digest in enumerate(batch.digests):
            position = batch.first + offset
            if digest and start <= position < stop:
                units.append(Unit(digest, batch.indices[offset], position))
    return tuple(units)


def _touched(made: tuple[ReferenceBatch, ...], start: int, stop: int) -> list[ReferenceBatch]:
    size = max(1, len(made[0].indices))
    # Only batch samplers cut unevenly, and their batches are taken as they are.
    guess = min(start // size, len(made) - 1)
    while guess > 0 and made[guess].first > start:
        guess -= 1
    touched = []
    for batch in made[guess:]:
        if batch.first >= stop:
            break
        if batch.first + len(batch.indices) > start:
            touched.append(batch)
    return touched
