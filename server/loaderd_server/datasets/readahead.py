"""Tells the kernel which bytes of files are read soon, so that they come while others are worked on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]

#: Bounds of one hint. What is beyond them is read when it is needed, as without a hint.
MOST_FILES = 1024
MOST_BYTES = 64 << 20
#: Ranges nearer to each other than this are read as one: the kernel reads whole pages anyway.
_GAP_BYTES = 64 << 10


def files(paths: Iterable[bytes]) -> int:
    """Asks for whole files, up to the bounds; returns the bytes asked for.

    A file that cannot be opened is passed over: whoever reads it will say so.
    """
    asked = 0
    for count, path in enumerate(paths):
        if count == MOST_FILES or asked >= MOST_BYTES:
            break
        with contextlib.suppress(OSError):
            asked += _file(path)
    return asked


def _file(path: bytes) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def merged(starts: Indices, ends: Indices) -> list[tuple[int, int]]:
    """Ascending byte ranges [start, end) as fewer ones, within the bounds of a hint."""
    if not len(starts):
        return []
    far_ends = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(starts[1:] > far_ends[:-1] + _GAP_BYTES) + 1
    first, last = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(starts)]]) - 1
    ranges, asked = [], 0
    for start, end in zip(starts[first].tolist(), far_ends[last].tolist(), strict=True):
        end = min(end, start + MOST_BYTES - asked)
        ranges.append((start, end))
        asked += end - start
        if len(ranges) == MOST_FILES or asked >= MOST_BYTES:
            break
    return ranges
