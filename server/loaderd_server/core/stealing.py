"""Memory goes from one size of records to another: whole runs, emptied for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loaderd_server.core.cacheindex import CacheIndex, Score
from loaderd_server.core.extents import SizeClass

#: Runs of a class that are looked at when one is to go, and the most that go for one new run.
_LOOKED_AT = 8
_MOST_FOR_ONE = 8


def donor_of(index: CacheIndex, size_class: SizeClass | None) -> SizeClass | None:
    """The class with the most memory, but for this one."""
    others = [c for c in index.extents.classes if c is not size_class and c.runs]
    return max(others, key=lambda c: c.runs * c.run_segments, default=None)


def give_run(index: CacheIndex, size_class: SizeClass, score: Score) -> int | None:
    """Empties runs of other classes until this one has a run more.

    How many samples went for it; None where no run could be had, as tasks read in all.
    """
    gone = 0
    for _ in range(_MOST_FOR_ONE):
        if index.extents.grow_class(size_class):
            return gone
        donor = donor_of(index, size_class)
        emptied = None if donor is None else empty_one(index, donor, score)
        if emptied is None:
            return None
        gone += emptied
    return gone if index.extents.grow_class(size_class) else None


def empty_one(index: CacheIndex, size_class: SizeClass, score: Score) -> int | None:
    """Empties the run of a class whose samples are worth least, of some; how many went."""
    for run in _least_first(size_class, score):
        gone = index.empty_run(size_class, run)
        if gone is not None:
            return gone
    return None


def _least_first(size_class: SizeClass, score: Score) -> Iterator[int]:
    runs = np.flatnonzero(size_class.starts >= 0)[-_LOOKED_AT:].tolist()
    return iter(sorted(runs, key=lambda run: _worth(size_class, run, score), reverse=True))


def _worth(size_class: SizeClass, run: int, score: Score) -> float:
    samples = size_class.sample[size_class.of_run(run)]
    here = samples[samples >= 0].astype(np.int64)
    return float(np.mean(score(here))) if len(here) else float("inf")
