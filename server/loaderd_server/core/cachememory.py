"""The memory of one cache: given to it in steps, taken back segment by segment."""

from __future__ import annotations

import numpy as np

from loaderd_server.core.actions import CommitCache, MakeCache, PunchCache, Severity
from loaderd_server.core.cacheindex import CacheIndex
from loaderd_server.core.keeping import Keeper
from loaderd_server.core.settings import CacheSettings
from loaderd_server.core.stealing import donor_of, empty_one
from loaderd_server.core.turn import Turn

#: Memory is asked for in steps of so much: faulting a step in takes 0.1 s.
_STEP_BYTES = 256 << 20
#: After a refusal, when memory is asked for again.
_REFUSAL_S = 30.0


class CacheMemory:
    """Asks the shell for memory and gives it back; one request is out at a time."""

    def __init__(
        self, settings: CacheSettings, index: CacheIndex, keeper: Keeper, turn: Turn
    ) -> None:
        self._settings = settings
        self._index = index
        self._extents = index.extents
        self._keeper = keeper
        self._turn = turn
        #: What it is to have; what it has comes after.
        self.target_bytes = 0
        self._reason = ""
        #: Ranges that are on their way, by offset.
        self._asked: dict[int, int] = {}
        self.refused_until = 0.0

    @property
    def committed_bytes(self) -> int:
        """What it has."""
        return self._extents.committed_bytes

    @property
    def is_changing(self) -> bool:
        """Whether a request is out."""
        return bool(self._asked)

    def open(self) -> None:
        """Has the arena made, and the least of its memory."""
        settings = self._settings
        self._turn.do(MakeCache(settings.dataset, self._extents.most_bytes))
        least = settings.least_bytes or min(settings.most_bytes // 8, _STEP_BYTES)
        self.grow_to(least, "it begins")

    def grow_to(self, target_bytes: int, reason: str) -> None:
        """Memory up to so much is asked for, step by step."""
        self.target_bytes = min(max(target_bytes, self.target_bytes), self._extents.most_bytes)
        self._reason = reason
        self._ask()

    def _ask(self) -> None:
        missing = self.target_bytes - self.committed_bytes
        if (
            self._asked
            or missing < self._extents.segment_bytes
            or self._turn.now < self.refused_until
        ):
            return
        step = max(self._extents.segment_bytes, min(missing, _STEP_BYTES))
        for offset, size_bytes in self._extents.bare_ranges(step):
            self._asked[offset] = size_bytes
            self._turn.do(CommitCache(self._settings.dataset, offset, size_bytes, self._reason))

    def committed(self, offset: int, size_bytes: int) -> None:
        """A range has memory; the next step is asked for."""
        if self._asked.pop(offset, None) is not None:
            self._extents.commit(offset, size_bytes)
            self._ask()

    def refused(self, offset: int, text: str) -> None:
        """There is none: the cache goes on with what it has."""
        self._asked.pop(offset, None)
        self.refused_until = self._turn.now + _REFUSAL_S
        self.target_bytes = max(self.committed_bytes, self._settings.least_bytes)
        self._turn.log(
            Severity.WARNING,
            f"the cache of {self._settings.dataset!r} stays at {self.committed_bytes} bytes: {text}",
        )

    def look_again(self) -> None:
        """Time has passed: what was refused is asked for again."""
        self._ask()

    def shrink_to(self, target_bytes: int, reason: str) -> None:
        """Memory above so much is given back: free segments first, then emptied ones."""
        target_bytes = max(target_bytes, self._settings.least_bytes)
        self.target_bytes = target_bytes
        segment_bytes = self._extents.segment_bytes
        count = -(-(self.committed_bytes - target_bytes) // segment_bytes)
        if count <= 0:
            return
        self._empty_runs(count)
        segments = self._extents.free()[-count:]
        for offset, size_bytes in self._extents.leave(np.sort(segments)):
            self._turn.do(PunchCache(self._settings.dataset, offset, size_bytes, reason))

    def _empty_runs(self, segments: int) -> None:
        score = self._keeper.score()
        while self._extents.free_segments < segments:
            largest = donor_of(self._index, None)
            gone = None if largest is None else empty_one(self._index, largest, score)
            if gone is None:
                return
            self._keeper.counts.evicted += gone

    def punched(self, offset: int, size_bytes: int) -> None:
        """A range has lost its memory."""
        self._extents.punched(offset, size_bytes)
