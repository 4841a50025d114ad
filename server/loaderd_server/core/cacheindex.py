"""The index of one dataset's cache: where each sample lies, who reads it, when it was used.

Of 10 million samples it takes 14 bytes each, and 8 for each extent; orders and their inverses aside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loaderd_server.core.extents import FREE, RESERVED, Extents, Ordinals, SizeClass
from loaderd_server.core.tasks import NOWHERE, Indices

#: ``CacheIndex.offset`` of a sample that a worker is about to write.
PENDING = -2
#: Victims are looked for among at least so many extents, and for each that is needed among so many.
_LEAST_LOOK, _LOOK_EACH = 1024, 8
#: Candidates of earlier searches that are looked at again.
_REMEMBERED = 1024

#: What samples are worth: the higher, the sooner they may go.
Score = Callable[[Indices], Indices]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Extents that are spoken for, until their samples are written: of each, its class and ordinal."""

    samples: Indices
    size_class: SizeClass
    ordinals: Ordinals


class CacheIndex:
    """Samples are dataset indices, from 0 to ``samples`` - 1."""

    def __init__(self, samples: int, extents: Extents) -> None:
        self.extents = extents
        #: Where each sample's record lies; NOWHERE, or PENDING.
        self.offset: Indices = np.full(samples, NOWHERE, np.int64)
        #: Tasks in progress that read it: its extent is not given to another until they are over.
        self.readers: npt.NDArray[np.uint16] = np.zeros(samples, np.uint16)
        #: For policies that look back: the tick of the last use, or the number of uses.
        self.used: npt.NDArray[np.int32] = np.zeros(samples, np.int32)
        self.count = 0

    # --- reading ----------------------------------------------------------------------------

    def pin(self, samples: Indices) -> None:
        """A task reads them from now on. Its repeats count once, here and in ``unpin``."""
        self.readers[samples] += 1

    def unpin(self, samples: Indices) -> None:
        """It does no more."""
        self.readers[samples] -= 1

    def absent(self, samples: Indices) -> npt.NDArray[np.bool_]:
        """Which of them are neither here nor on their way."""
        is_absent: npt.NDArray[np.bool_] = self.offset[samples] == NOWHERE
        return is_absent

    # --- coming and going -------------------------------------------------------------------

    def reserve(self, size_class: SizeClass, samples: Indices) -> Reserve:
        """Free extents for as many of these as can be had, first ones first; the class may grow."""
        ordinals = size_class.take(len(samples))
        while len(ordinals) < len(samples) and self.extents.grow_class(size_class):
            more = size_class.take(len(samples) - len(ordinals))
            ordinals = np.concatenate((ordinals, more))
        return self._reserved(size_class, samples[: len(ordinals)], ordinals)

    def replace(self, size_class: SizeClass, victims: Ordinals, samples: Indices) -> Reserve:
        """The extents of these victims, which are gone with that."""
        self.offset[size_class.sample[victims]] = NOWHERE
        self.count -= len(victims)
        size_class.sample[victims] = RESERVED
        return self._reserved(size_class, samples, victims)

    def _reserved(self, size_class: SizeClass, samples: Indices, ordinals: Ordinals) -> Reserve:
        self.offset[samples] = PENDING
        return Reserve(samples, size_class, ordinals)

    def commit(self, reserve: Reserve) -> None:
        """Their records are written."""
        size_class, ordinals = reserve.size_class, reserve.ordinals
        size_class.sample[ordinals] = reserve.samples
        self.offset[reserve.samples] = size_class.offsets(ordinals)
        self.count += len(ordinals)

    def roll_back(self, reserve: Reserve) -> None:
        """They will not be: samples are nowhere, and their extents rest until ``give_back``."""
        self.offset[reserve.samples] = NOWHERE

    @staticmethod
    def give_back(reserve: Reserve) -> None:
        """Nobody writes in these extents any more."""
        reserve.size_class.give_back(reserve.ordinals)

    def drop(self, sample: int) -> None:
        """Forgets one sample, whose record is not what it should be, unless somebody reads it."""
        offset = int(self.offset[sample])
        if offset >= 0 and not self.readers[sample]:
            size_class, ordinal = self.extents.locate(offset)
            self._forget(size_class, np.array([ordinal], np.int32))

    def _forget(self, size_class: SizeClass, ordinals: Ordinals) -> None:
        self.offset[size_class.sample[ordinals]] = NOWHERE
        self.count -= len(ordinals)
        size_class.give_back(ordinals)

    def empty_run(self, size_class: SizeClass, run: int) -> int | None:
        """Forgets all samples of a run and frees its segments; how many, or None where it is in use."""
        ordinals = size_class.of_run(run)
        samples = size_class.sample[ordinals]
        is_here = samples >= 0
        if (samples == RESERVED).any() or self.readers[samples[is_here]].any():
            return None
        self._forget(size_class, ordinals[is_here])
        self.extents.release_run(size_class, run)
        return int(is_here.sum())

    # --- victims ----------------------------------------------------------------------------

    def victims(self, size_class: SizeClass, count: int, score: Score) -> tuple[Ordinals, Indices]:
        """Up to ``count`` extents of the class that may go first, and their scores, from the highest.

        Looked for among those that earlier searches found nearly good enough, and some more, going
        round: where there are few extents, among all. Nothing that a task reads is among them.
        """
        candidates = self._candidates(size_class, count)
        samples = size_class.sample[candidates]
        can_go = samples != FREE
        can_go &= samples >= 0
        can_go &= self.readers[samples] == 0
        candidates = candidates[can_go]
        scores = score(samples[can_go].astype(np.int64))
        order = np.argsort(scores)[::-1]
        candidates, scores = candidates[order], scores[order]
        size_class.remembered = candidates[: max(count, _REMEMBERED)]
        return candidates[:count], scores[:count]

    @staticmethod
    def _candidates(size_class: SizeClass, count: int) -> Ordinals:
        look = max(_LEAST_LOOK, _LOOK_EACH * count)
        if look + _REMEMBERED >= size_class.extents:
            return np.arange(size_class.extents, dtype=np.int32)
        first = size_class.hand
        looked = np.arange(first, first + look, dtype=np.int32) % size_class.extents
        size_class.hand = (first + look) % size_class.extents
        known = size_class.remembered
        fresh = (known - first) % size_class.extents >= look
        return np.concatenate((known[fresh], looked))
