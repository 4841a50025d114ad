"""Extents of one size by when their samples are used next: the farthest are found without a search.

A ring of buckets over the time to come, each a linked list; time counts samples that a trainer reads.
What is in a bucket was right when it was put there. A sample that was used since lies in a bucket whose
time has passed: those are looked at again before victims are taken (``sweep``), and victims are looked at
again before they go. So nothing is done when a sample is used, and each use costs one look later.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loaderd_server.core.cacheindex import CacheIndex
from loaderd_server.core.extents import Ordinals, SizeClass
from loaderd_server.core.nextuse import FAR
from loaderd_server.core.tasks import Indices

_BUCKETS = 4096
#: The list of those that nobody comes to, as far as orders are known.
_NEVER = _BUCKETS
#: ``_next`` of the last of a list, of an extent that is nowhere, and of one in hand.
_END, _LOOSE, _IN_HAND = -1, -2, -3
#: The most extents that are looked at again for one batch.
_MOST_SWEPT, _MOST_TAKEN = 2048, 4096
#: Lists of so many are taken at a time.
_PIECE = 64

_NONE: Ordinals = np.empty(0, np.int32)
Distance = Callable[[Indices], Indices]


class Ladder:
    """One size class's. ``horizon``: the farthest use that is told apart, in samples."""

    def __init__(self, index: CacheIndex, size_class: SizeClass, horizon: int) -> None:
        self._index = index
        self._class = size_class
        self._width = max(1, -(-horizon // _BUCKETS))
        self._heads: Ordinals = np.full(_BUCKETS + 1, _END, np.int32)
        self._next: Ordinals = np.empty(0, np.int32)
        #: Every bucket before this one was swept; buckets are numbered through all rounds of the ring.
        self._swept = 0
        #: Farthest ones that were taken from their lists, and have not gone yet.
        self._hand: Ordinals = np.empty(0, np.int32)

    def add(self, ordinals: Ordinals, uses: Indices) -> None:
        """Samples came into these extents; ``uses``: when each is used next (absolute; FAR for never)."""
        self._make_room()
        is_loose = self._next[ordinals] == _LOOSE
        self._link(ordinals[is_loose], uses[is_loose])

    def farthest(self, count: int, now: int, distance: Distance) -> tuple[Ordinals, Indices]:
        """Up to ``count`` extents whose samples nobody reads now, farthest use first, and how far it is.

        They stay the first to be looked at next time, unless other samples come into them.
        """
        self._make_room()
        self._sweep(now, distance)
        self._next[self._hand] = _LOOSE
        ordinals, far, is_free = self._look(self._hand, distance)
        taken = 0
        while taken < _MOST_TAKEN:
            lowest = self._lowest_wanted(far[is_free], count, now)
            more = self._take_top(lowest, max(count, _PIECE)) if lowest is not None else _NONE
            if not len(more):
                break
            taken += len(more)
            seen = self._look(more, distance)
            ordinals = np.concatenate((ordinals, seen[0]))
            far = np.concatenate((far, seen[1]))
            is_free = np.concatenate((is_free, seen[2]))
        return self._choose(ordinals, far, is_free, count, now)

    def _choose(
        self,
        ordinals: Ordinals,
        far: Indices,
        is_free: npt.NDArray[np.bool_],
        count: int,
        now: int,
    ) -> tuple[Ordinals, Indices]:
        """The farthest that are free; those that tasks read stay in hand, as they may be free next time."""
        order = np.argsort(-far, kind="stable")
        free = order[is_free[order]]
        kept = np.concatenate((free[: count + _PIECE], order[~is_free[order]]))
        self._hand = ordinals[kept]
        self._next[self._hand] = _IN_HAND
        rest = free[count + _PIECE :]
        self._link(ordinals[rest], _when(far[rest], now))
        return ordinals[free[:count]], far[free[:count]]

    def _look(
        self, ordinals: Ordinals, distance: Distance
    ) -> tuple[Ordinals, Indices, npt.NDArray[np.bool_]]:
        """Those that have a sample, how far its next use is, and whether no task reads it.

        The others are in no list from now on.
        """
        samples = self._class.sample[ordinals].astype(np.int64)
        here = samples >= 0
        samples = samples[here]
        return ordinals[here], distance(samples), self._index.readers[samples] == 0

    def _lowest_wanted(self, far: Indices, count: int, now: int) -> int | None:
        """The bucket down to which more must be taken; None where those in hand are far enough."""
        if len(far) < count:
            return self._swept
        least = int(np.partition(far, len(far) - count)[len(far) - count])
        if least >= FAR:
            return None
        return max(self._swept, self._bucket(now + least) + 1)

    def _sweep(self, now: int, distance: Distance) -> None:
        """Looks again at buckets whose time has passed."""
        passed = now // self._width
        stale: list[int] = []
        for number in self._occupied(self._swept, passed).tolist():
            self._unlink(number % _BUCKETS, _MOST_SWEPT - len(stale), stale)
            if len(stale) >= _MOST_SWEPT:
                passed = number
                break
        self._swept = max(self._swept, passed)
        if stale:
            ordinals, far, _ = self._look(np.array(stale, np.int32), distance)
            self._link(ordinals, _when(far, now))

    def _take_top(self, lowest: int, most: int) -> Ordinals:
        """Takes extents from the farthest lists down to bucket ``lowest``."""
        taken: list[int] = []
        self._unlink(_NEVER, most, taken)
        for number in self._occupied(lowest, self._swept + _BUCKETS)[::-1].tolist():
            if len(taken) >= most:
                break
            self._unlink(number % _BUCKETS, most - len(taken), taken)
        return np.array(taken, np.int32)

    def _occupied(self, first: int, end: int) -> Indices:
        """Buckets with extents in them, from ``first`` on and before ``end``, ascending."""
        places = np.flatnonzero(self._heads[:_BUCKETS] != _END)
        numbers = self._swept + (places - self._swept) % _BUCKETS
        split = int(np.searchsorted(places, self._swept % _BUCKETS))
        numbers = np.concatenate((numbers[split:], numbers[:split]))
        return numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, end)]

    def _unlink(self, bucket: int, most: int, into: list[int]) -> None:
        links, at = self._next, int(self._heads[bucket])
        taken = 0
        while at != _END and taken < most:
            behind = int(links[at])
            links[at] = _LOOSE
            into.append(at)
            at = behind
            taken += 1
        self._heads[bucket] = at

    def _bucket(self, use: int) -> int:
        return min(max(use // self._width, self._swept), self._swept + _BUCKETS - 1)

    def _link(self, ordinals: Ordinals, uses: Indices) -> None:
        """Puts loose extents into the buckets of these times."""
        if not len(ordinals):
            return
        last = self._swept + _BUCKETS - 1
        numbers = np.clip(uses // self._width, self._swept, last)
        buckets = np.where(uses >= FAR, _NEVER, numbers % _BUCKETS)
        order = np.argsort(buckets, kind="stable")
        buckets, ordinals = buckets[order], ordinals[order]
        # Each points to the one behind it; the last of a bucket to what was the first there.
        is_last = np.append(buckets[1:] != buckets[:-1], True)
        behind = np.append(ordinals[1:], _END)
        self._next[ordinals] = np.where(is_last, self._heads[buckets], behind)
        is_first = np.concatenate(([True], is_last[:-1]))
        self._heads[buckets[is_first]] = ordinals[is_first]

    def _make_room(self) -> None:
        missing = self._class.extents - len(self._next)
        if missing:
            self._next = np.concatenate((self._next, np.full(missing, _LOOSE, np.int32)))


def _when(far: Indices, now: int) -> Indices:
    return np.where(far >= FAR, FAR, far + now)
