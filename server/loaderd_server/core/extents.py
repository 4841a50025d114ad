"""Where records lie in a cache arena: segments, runs of them for a size, and extents of one size in a run.

The arena is cut into segments of equal size. Records of about one size share a size class; a class takes
runs of segments and cuts each into extents. Of what classes have taken, an eighth at most is lost within
extents (or 15 bytes each), as a record goes to a class no more than so much larger, and a sixteenth at
the ends of runs. Where all records have one size the first loss is none.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from loaderd_protocol.arena import page_align
from loaderd_server.core.tasks import Indices

#: Every record begins at a multiple of it.
UNIT_BYTES = 16
#: Shares that may be lost within an extent, and at the end of a run.
WITHIN, AT_END = 8, 16
#: So many sizes get a class of exactly that size; later ones are rounded up to steps of an eighth.
_EXACT_CLASSES = 8
#: Segments hold about so many records; there are so many of them, and none is smaller than this.
_RECORDS = 8
_LEAST_SEGMENTS, _MOST_SEGMENTS = 64, 4096
_LEAST_SEGMENT_BYTES = 1 << 16
Ordinals = npt.NDArray[np.int32]
#: ``SizeClass.sample`` where there is no sample: a free extent, one that is spoken for, or no memory.
FREE, RESERVED, NO_MEMORY = -1, -2, -3


class SegmentState(IntEnum):
    """BARE: no memory. LEAVING: its memory is on its way back. FREE: memory that no class has."""

    BARE = 0
    LEAVING = 1
    FREE = 2
    TAKEN = 3


class SizeClass:
    """Extents of one size, numbered through all its runs (ordinals)."""

    def __init__(self, number: int, extent_bytes: int, segment_bytes: int) -> None:
        self.number = number
        self.extent_bytes = extent_bytes
        self.run_segments = _run_segments(extent_bytes, segment_bytes)
        self.per_run = self.run_segments * segment_bytes // extent_bytes
        #: Offset of each run; -1 for one that was given back.
        self.starts: Indices = np.empty(0, np.int64)
        #: The sample in each extent, or FREE, RESERVED, NO_MEMORY.
        self.sample: Ordinals = np.empty(0, np.int32)
        self._free: Ordinals = np.empty(0, np.int32)
        self.free_count = 0
        #: Where the search for victims goes on, and those that it remembers.
        self.hand = 0
        self.remembered: Ordinals = np.empty(0, np.int32)
        #: Samples that found no place here and were worth more than some of another class.
        self.missed = 0

    @property
    def extents(self) -> int:
        """How many there are, with memory or without."""
        return len(self.sample)

    @property
    def runs(self) -> int:
        """Runs that it has."""
        return int(np.count_nonzero(self.starts >= 0))

    def add_run(self, start: int) -> int:
        """Takes a run over; its extents are free. Returns its number."""
        holes = np.flatnonzero(self.starts < 0)
        if not len(holes):
            self._double()
            holes = np.flatnonzero(self.starts < 0)
        run = int(holes[0])
        self.starts[run] = start
        ordinals = self.of_run(run)
        self.sample[ordinals] = FREE
        self._push(ordinals[::-1])
        return run

    def _double(self) -> None:
        """Room for twice as many runs."""
        more = max(4, len(self.starts))
        self.starts = np.concatenate((self.starts, np.full(more, -1, np.int64)))
        bare = np.full(more * self.per_run, NO_MEMORY, np.int32)
        self.sample = np.concatenate((self.sample, bare))

    def drop_run(self, run: int) -> None:
        """Lets a run go in which every extent is free."""
        ordinals = self.of_run(run)
        assert (self.sample[ordinals] == FREE).all(), "a run that is in use was dropped"
        self.sample[ordinals] = NO_MEMORY
        free = self._free[: self.free_count]
        left = free[(free < ordinals[0]) | (free > ordinals[-1])]
        self._free[: len(left)] = left
        self.free_count = len(left)
        self.starts[run] = -1

    def of_run(self, run: int) -> Ordinals:
        """The ordinals of a run."""
        return np.arange(run * self.per_run, (run + 1) * self.per_run, dtype=np.int32)

    def take(self, count: int) -> Ordinals:
        """Up to ``count`` free extents, now RESERVED."""
        count = min(count, self.free_count)
        self.free_count -= count
        taken = self._free[self.free_count : self.free_count + count].copy()
        self.sample[taken] = RESERVED
        return taken

    def give_back(self, ordinals: Ordinals) -> None:
        """These are free again."""
        self.sample[ordinals] = FREE
        self._push(ordinals)

    def offsets(self, ordinals: Ordinals) -> Indices:
        """Where they lie."""
        runs, within = np.divmod(ordinals.astype(np.int64), self.per_run)
        found: Indices = self.starts[runs] + within * self.extent_bytes
        return found

    def _push(self, ordinals: Ordinals) -> None:
        end = self.free_count + len(ordinals)
        if end > len(self._free):
            more = np.empty(max(end, 2 * len(self._free)) - len(self._free), np.int32)
            self._free = np.concatenate((self._free, more))
        self._free[self.free_count : end] = ordinals
        self.free_count = end


class Extents:
    """The segments of one arena, and the size classes that have them."""

    def __init__(self, most_bytes: int, record_bytes: int) -> None:
        """``record_bytes``: what a record is likely to take; where all do, no byte is lost but at ends."""
        self.segment_bytes = _segment_bytes(most_bytes, record_bytes)
        self.segments = max(1, most_bytes // self.segment_bytes)
        self.most_bytes = self.segments * self.segment_bytes
        self.state = np.zeros(self.segments, np.uint8)
        self._class_of = np.full(self.segments, -1, np.int32)
        self._run_of = np.full(self.segments, -1, np.int32)
        self.classes: list[SizeClass] = []
        #: Sizes in ascending order, and their classes.
        self._sizes: list[int] = []
        self._by_size: list[SizeClass] = []
        self.free_segments = 0

    @property
    def committed_bytes(self) -> int:
        """Bytes of segments that have memory."""
        return int(np.count_nonzero(self.state >= SegmentState.FREE)) * self.segment_bytes

    # --- memory -----------------------------------------------------------------------------

    def commit(self, offset: int, size_bytes: int) -> None:
        """These segments have memory now."""
        self._set(offset, size_bytes, SegmentState.FREE)

    def punched(self, offset: int, size_bytes: int) -> None:
        """These have none any more."""
        self._set(offset, size_bytes, SegmentState.BARE)

    def _set(self, offset: int, size_bytes: int, state: SegmentState) -> None:
        first = offset // self.segment_bytes
        self.state[first : first + size_bytes // self.segment_bytes] = state
        self.free_segments = int(np.count_nonzero(self.state == SegmentState.FREE))

    def bare_ranges(self, size_bytes: int) -> list[tuple[int, int]]:
        """(offset, bytes) of segments without memory, of no more than ``size_bytes`` together."""
        bare = np.flatnonzero(self.state == SegmentState.BARE)
        return self._ranges(bare[: size_bytes // self.segment_bytes])

    def leave(self, segments: Indices) -> list[tuple[int, int]]:
        """Free segments that are to lose their memory, as ranges (offset, bytes)."""
        self.state[segments] = SegmentState.LEAVING
        self.free_segments = int(np.count_nonzero(self.state == SegmentState.FREE))
        return self._ranges(segments)

    def free(self) -> Indices:
        """Segments with memory that no class has."""
        return np.flatnonzero(self.state == SegmentState.FREE)

    def _ranges(self, segments: Indices) -> list[tuple[int, int]]:
        if not len(segments):
            return []
        pieces = np.split(segments, np.flatnonzero(np.diff(segments) > 1) + 1)
        return [
            (int(piece[0]) * self.segment_bytes, len(piece) * self.segment_bytes)
            for piece in pieces
        ]

    # --- classes ----------------------------------------------------------------------------

    def class_for(self, size_bytes: int) -> SizeClass | None:
        """The class of records of this size, new if there is none; None where it exceeds the arena."""
        at = bisect_left(self._sizes, size_bytes)
        if at < len(self._sizes) and _fits(size_bytes, self._sizes[at]):
            return self._by_size[at]
        extent_bytes = -(-size_bytes // UNIT_BYTES) * UNIT_BYTES
        if len(self.classes) >= _EXACT_CLASSES:
            extent_bytes = _rounded(extent_bytes)
        if extent_bytes > self.most_bytes:
            return None
        made = SizeClass(len(self.classes), extent_bytes, self.segment_bytes)
        if made.run_segments > self.segments:
            return None
        self.classes.append(made)
        at = bisect_left(self._sizes, extent_bytes)
        self._sizes.insert(at, extent_bytes)
        self._by_size.insert(at, made)
        return made

    def grow_class(self, size_class: SizeClass) -> bool:
        """Gives a class one more run of free segments; False where there is none."""
        start = self._free_run(size_class.run_segments)
        if start is None:
            return False
        run = size_class.add_run(start * self.segment_bytes)
        taken = slice(start, start + size_class.run_segments)
        self.state[taken] = SegmentState.TAKEN
        self._class_of[taken] = size_class.number
        self._run_of[taken] = run
        self.free_segments -= size_class.run_segments
        return True

    def release_run(self, size_class: SizeClass, run: int) -> None:
        """Takes a run from its class, in which every extent is free: its segments are free."""
        start = int(size_class.starts[run]) // self.segment_bytes
        size_class.drop_run(run)
        self.state[start : start + size_class.run_segments] = SegmentState.FREE
        self.free_segments += size_class.run_segments

    def _free_run(self, length: int) -> int | None:
        free = self.state == SegmentState.FREE
        if length == 1:
            first = int(free.argmax())
            return first if free[first] else None
        sums = np.concatenate(([0], np.cumsum(free)))
        whole = np.flatnonzero(sums[length:] - sums[:-length] == length)
        return int(whole[0]) if len(whole) else None

    def locate(self, offset: int) -> tuple[SizeClass, int]:
        """The class and the ordinal of the extent at an offset."""
        segment = offset // self.segment_bytes
        size_class = self.classes[int(self._class_of[segment])]
        run = int(self._run_of[segment])
        within = (offset - int(size_class.starts[run])) // size_class.extent_bytes
        return size_class, run * size_class.per_run + within

    @property
    def used_bytes(self) -> int:
        """Bytes of extents that hold a sample or are spoken for."""
        return sum((c.runs * c.per_run - c.free_count) * c.extent_bytes for c in self.classes)


def _segment_bytes(most_bytes: int, record_bytes: int) -> int:
    """Some records, whole ones, but no more than a 64th of the arena where that holds one."""
    extent_bytes = -(-max(record_bytes, 1) // UNIT_BYTES) * UNIT_BYTES
    some = min(_RECORDS * extent_bytes, most_bytes // _LEAST_SEGMENTS)
    wanted = max(some, _LEAST_SEGMENT_BYTES, most_bytes // _MOST_SEGMENTS)
    found = page_align(-(-wanted // extent_bytes) * extent_bytes)
    # A small arena has at least a few segments, so that records of other sizes find a place.
    while found > most_bytes and found > page_align(extent_bytes):
        found = max(page_align(extent_bytes), page_align(found // 2))
    return found


def _run_segments(extent_bytes: int, segment_bytes: int) -> int:
    """The fewest segments at whose end no more than a sixteenth is lost."""
    segments = -(-extent_bytes // segment_bytes)
    while segments * segment_bytes % extent_bytes * AT_END > segments * segment_bytes:
        segments += 1
    return segments


def _fits(size_bytes: int, extent_bytes: int) -> bool:
    lost = extent_bytes - size_bytes
    return lost < UNIT_BYTES or lost * WITHIN <= extent_bytes


def _rounded(extent_bytes: int) -> int:
    """Up to the next of eight steps between two powers of two."""
    step = max(UNIT_BYTES, 1 << max(0, extent_bytes.bit_length() - 4))
    return -(-extent_bytes // step) * step
