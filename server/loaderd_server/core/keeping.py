"""Which samples a cache takes in, and what goes for them: the policies, and the reserves of workers.

A reserve is made when a worker has a sample and its size, and becomes part of the index when the worker
has written it; if the worker ends before, its extents rest for a moment, as nobody can know when a
killed process wrote its last byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loaderd_server.core.cacheindex import CacheIndex, Reserve, Score
from loaderd_server.core.extents import Ordinals, SizeClass
from loaderd_server.core.ladder import Ladder
from loaderd_server.core.nextuse import FAR, Reader, distances
from loaderd_server.core.settings import Policy
from loaderd_server.core.stealing import donor_of, give_run
from loaderd_server.core.tasks import NOWHERE, Indices
from loaderd_server.core.turn import Turn

#: How long extents rest that a dead worker may have been writing to.
_REST_S = 1.0
#: Batches with misses after which it is looked up anew how far the farthest sample's use is.
_CUTOFF_LASTS = 16
#: Victims looked at for that.
_CUTOFF_LOOK = 16


@dataclass(slots=True)
class KeepCounts:
    """Samples, since the cache began."""

    kept: int = 0
    evicted: int = 0
    #: Offered, and not taken in: no room for its size, or used later than all there are.
    declined: int = 0


@dataclass(frozen=True, slots=True)
class Promise:
    """What a worker is to write: rows of its task, their samples, and where these go."""

    rows: Indices
    samples: Indices
    reserves: list[Reserve]


class Keeper:
    """Decides for one cache. ``readers`` gives where trainers load from, as of now."""

    def __init__(
        self,
        index: CacheIndex,
        policy: Policy,
        turn: Turn,
        readers: Callable[[], list[Reader]],
    ) -> None:
        self._index = index
        self._policy = policy
        self._turn = turn
        self._readers = readers
        #: Batches so far, for policies that look back; samples that each trainer has read.
        self._uses = 0
        self._clock = 0.0
        self._pace = 1
        self._ladders: dict[int, Ladder] = {}
        #: A sample that is used no sooner than this finds no victim; None where that is not known.
        self._cutoff: int | None = None
        self._cutoff_age = 0
        #: By worker and task.
        self._promises: dict[tuple[int, int], Promise] = {}
        self._resting: deque[tuple[float, Reserve]] = deque()
        self.counts = KeepCounts()

    # --- what is worth keeping --------------------------------------------------------------

    def used(self, samples: Indices) -> None:
        """A batch has these samples: for policies that look back."""
        if self._policy is Policy.CLAIRVOYANT:
            self._clock += len(samples) / self._pace
        elif self._policy is Policy.LRU:
            self._uses += 1
            self._index.used[samples] = self._uses
        elif self._policy is Policy.LFU:
            self._index.used[samples] += 1

    def wanted(self, samples: Indices) -> Indices:
        """Which of these that are to be loaded may be worth keeping, as places in ``samples``."""
        is_absent = self._index.absent(samples)
        if not self.has_room:
            if self._policy is Policy.PIN:
                return np.empty(0, np.int64)
            if self._policy is Policy.CLAIRVOYANT:
                is_absent &= self._distances(samples) < self._known_cutoff()
        return np.flatnonzero(is_absent)

    @property
    def has_room(self) -> bool:
        """Whether there is memory that no sample has."""
        extents = self._index.extents
        return extents.free_segments > 0 or any(c.free_count for c in extents.classes)

    def _known_cutoff(self) -> int:
        self._cutoff_age += 1
        if self._cutoff is None or self._cutoff_age > _CUTOFF_LASTS:
            largest = max(self._index.extents.classes, key=lambda c: c.runs, default=None)
            if largest is None:
                return FAR
            self._look(largest, _CUTOFF_LOOK, self.score())
        return FAR if self._cutoff is None else self._cutoff

    def _look(self, size_class: SizeClass, count: int, score: Score) -> tuple[Ordinals, Indices]:
        if self._policy is Policy.CLAIRVOYANT:
            ladder = self._ladder(size_class)
            victims, scores = ladder.farthest(count, int(self._clock), score)
        else:
            victims, scores = self._index.victims(size_class, count, score)
        if len(scores):
            self._cutoff, self._cutoff_age = int(scores[0]), 0
        return victims, scores

    def _ladder(self, size_class: SizeClass) -> Ladder:
        ladder = self._ladders.get(size_class.number)
        if ladder is None:
            # This epoch and the next are told apart; later ones are not known.
            horizon = 2 * len(self._index.offset)
            ladder = self._ladders[size_class.number] = Ladder(self._index, size_class, horizon)
        return ladder

    def _distances(self, samples: Indices) -> Indices:
        return distances(samples, self._readers())

    def score(self) -> Score:
        """What samples are worth now; the higher, the sooner they may go."""
        if self._policy is Policy.CLAIRVOYANT:
            readers = self._readers()
            self._pace = max(1, sum(not reader.ahead for reader in readers))
            return lambda samples: distances(samples, readers)
        used = self._index.used
        return lambda samples: -used[samples].astype(np.int64)

    # --- taking in --------------------------------------------------------------------------

    def take_in(
        self, worker: int, task: int, rows: Indices, samples: Indices, sizes: Indices
    ) -> Indices:
        """Where the samples in these rows are to be written; NOWHERE where one is not taken in.

        The places are spoken for until ``written``, or until the worker ends.
        """
        self._end_rests()
        offsets = np.full(len(samples), NOWHERE, np.int64)
        score = self.score()
        reserves: list[Reserve] = []
        free = self._new_ones(samples)
        for size_class, of_class in self._by_class(sizes, free):
            for places, reserve in self._place(size_class, of_class, samples, score):
                offsets[places] = size_class.offsets(reserve.ordinals)
                reserves.append(reserve)
        if reserves:
            self._promises[(worker, task)] = Promise(rows, samples, reserves)
        self.counts.declined += int(np.count_nonzero(offsets == NOWHERE))
        return offsets

    def _new_ones(self, samples: Indices) -> Indices:
        """Places of those that are nowhere yet, each sample once."""
        first = np.unique(samples, return_index=True)[1]
        return first[self._index.absent(samples[first])]

    def _by_class(self, sizes: Indices, rows: Indices) -> Iterable[tuple[SizeClass, Indices]]:
        classes: dict[int, SizeClass] = {}
        groups: dict[int, list[Indices]] = {}
        for size in np.unique(sizes[rows]).tolist():
            size_class = self._index.extents.class_for(size)
            if size_class is not None:
                classes[size_class.number] = size_class
                groups.setdefault(size_class.number, []).append(rows[sizes[rows] == size])
        for number, parts in groups.items():
            yield classes[number], parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _place(
        self,
        size_class: SizeClass,
        rows: Indices,
        samples: Indices,
        score: Score,
    ) -> Iterable[tuple[Indices, Reserve]]:
        """Free extents for the best of these rows, then those of samples that are worth less."""
        worth = score(samples[rows])
        order = np.argsort(worth, kind="stable")
        rows, worth = rows[order], worth[order]
        reserve = self._index.reserve(size_class, samples[rows])
        taken = len(reserve.samples)
        if taken:
            yield rows[:taken], reserve
        rows, worth = rows[taken:], worth[taken:]
        if not len(rows) or self._policy is Policy.PIN:
            return
        victims, scores = self._look(size_class, len(rows), score)
        count = int(np.count_nonzero(scores > worth[: len(scores)]))
        if count:
            self.counts.evicted += count
            replaced = self._index.replace(size_class, victims[:count], samples[rows[:count]])
            yield rows[:count], replaced
        yield from self._rebalance(size_class, rows[count:], worth[count:], samples, score)

    def _rebalance(
        self,
        size_class: SizeClass,
        rows: Indices,
        worth: Indices,
        samples: Indices,
        score: Score,
    ) -> Iterable[tuple[Indices, Reserve]]:
        """A run of another class, where samples there are worth less than these that find no place."""
        donor = donor_of(self._index, size_class)
        if donor is None or not len(rows):
            return
        _, others = self._look(donor, _CUTOFF_LOOK, score)
        deserve = int(np.count_nonzero(worth < others[0])) if len(others) else 0
        size_class.missed += deserve
        if not deserve or (size_class.runs and size_class.missed < size_class.per_run):
            return
        size_class.missed = 0
        gone = give_run(self._index, size_class, score)
        if gone is not None:
            self.counts.evicted += gone
            reserve = self._index.reserve(size_class, samples[rows[:deserve]])
            if len(reserve.samples):
                yield rows[: len(reserve.samples)], reserve

    # --- what became of reserves ------------------------------------------------------------

    def written(self, worker: int, task: int, failed: tuple[int, ...]) -> None:
        """The worker has written what it was to, but for these rows of its task."""
        promise = self._promises.pop((worker, task), None)
        if promise is None:
            return
        lost = promise.samples[np.isin(promise.rows, np.array(failed, np.int64))]
        score = self.score()
        for reserve in promise.reserves:
            is_lost = np.isin(reserve.samples, lost)
            self._commit(_part(reserve, ~is_lost), score)
            gone = _part(reserve, is_lost)
            self._index.roll_back(gone)
            self._index.give_back(gone)

    def _commit(self, reserve: Reserve, score: Score) -> None:
        self._index.commit(reserve)
        if self._policy is Policy.CLAIRVOYANT:
            uses = score(reserve.samples) + int(self._clock)
            self._ladder(reserve.size_class).add(reserve.ordinals, uses)
        self.counts.kept += len(reserve.samples)

    def worker_ended(self, worker: int) -> None:
        """What it was to write is not there; what it may have been writing rests."""
        for key in [key for key in self._promises if key[0] == worker]:
            for reserve in self._promises.pop(key).reserves:
                self._index.roll_back(reserve)
                self._resting.append((self._turn.now + _REST_S, reserve))

    def all_ended(self) -> None:
        """The same for every worker."""
        for worker in {worker for worker, _task in self._promises}:
            self.worker_ended(worker)

    def _end_rests(self) -> None:
        while self._resting and self._resting[0][0] <= self._turn.now:
            self._index.give_back(self._resting.popleft()[1])


def _part(reserve: Reserve, mask: npt.NDArray[np.bool_]) -> Reserve:
    return Reserve(reserve.samples[mask], reserve.size_class, reserve.ordinals[mask])
