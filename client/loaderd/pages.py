"""The pages of a private mapping that this process has written: found, and dropped.

A page written through a copy-on-write mapping is this process's own until it is dropped; then the
next read sees the shared page again. Three ways to find them, the first that the kernel has:
the PAGEMAP_SCAN ioctl (Linux 6.7), /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst),
and none, where everything is dropped.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from functools import cache

import numpy as np

_PAGEMAP_SCAN = 0xC0606610
_SCAN_ARGUMENT = struct.Struct("<12Q")
_IS_FILE, _IS_PRESENT, _IS_SWAPPED = 1 << 2, 1 << 3, 1 << 4
_REGIONS = 512
#: Bits of an entry of /proc/self/pagemap.
_PRESENT, _SWAPPED, _FILE = np.uint64(1 << 63), np.uint64(1 << 62), np.uint64(1 << 61)

Ranges = list[tuple[int, int]]


def written(start: int, end: int) -> Ranges:
    """The parts of [start, end), by address and page-aligned, that this process has written."""
    descriptor = _pagemap(os.getpid())
    if descriptor is None:
        return [(start, end)]
    try:
        return _scan(descriptor, start, end)
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EINVAL, errno.EPERM):
            raise
    try:
        return _read_pagemap(descriptor, start, end)
    except OSError:
        return [(start, end)]


def drop(mapping: mmap.mmap, address: int, ranges: Ranges) -> bool:
    """Drops pages of a mapping that begins at ``address``; False where they are locked."""
    try:
        for start, end in ranges:
            mapping.madvise(mmap.MADV_DONTNEED, start - address, end - start)
    except OSError:
        return False
    return True


@cache
def _pagemap(pid: int) -> int | None:
    """Opened once a process: a descriptor from before a fork shows the parent's pages."""
    try:
        return os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _scan(descriptor: int, start: int, end: int) -> Ranges:
    regions = (ctypes.c_uint64 * (3 * _REGIONS))()
    ranges: Ranges = []
    while start < end:
        argument = bytearray(
            _SCAN_ARGUMENT.pack(
                _SCAN_ARGUMENT.size, 0, start, end, 0, ctypes.addressof(regions), _REGIONS, 0,
                _IS_FILE, _IS_FILE, _IS_PRESENT | _IS_SWAPPED, _IS_PRESENT,
            )
        )  # fmt: skip
        found = fcntl.ioctl(descriptor, _PAGEMAP_SCAN, argument)
        ranges += [(regions[3 * i], regions[3 * i + 1]) for i in range(found)]
        start = _SCAN_ARGUMENT.unpack(argument)[4]
    return ranges


def _read_pagemap(descriptor: int, start: int, end: int) -> Ranges:
    first, last = start // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)
    raw = os.pread(descriptor, 8 * (last - first), 8 * first)
    entries = np.frombuffer(raw, dtype=np.uint64)
    mine = ((entries & (_PRESENT | _SWAPPED)) != 0) & ((entries & _FILE) == 0)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mine, [False]]).astype(np.int8)))
    return [
        ((first + int(begin)) * mmap.PAGESIZE, (first + int(stop)) * mmap.PAGESIZE)
        for begin, stop in edges.reshape(-1, 2)
    ]
