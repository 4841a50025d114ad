"""Arenas: shared memory that has no name, whose size is sealed, and that is mapped by descriptor.

The daemon creates; workers map for writing; trainers get a read-only descriptor and map privately
(copy on write). Whether there is memory for an arena is checked before it is made (the server's
``memory`` module): neither memfd_create nor fallocate reports that memory ran out.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import tempfile

#: Values of <linux/memfd.h> and <asm-generic/mman-common.h> that Python 3.11 does not name.
_MADV_POPULATE_WRITE = 23
#: Values of <linux/falloc.h>.
_FALLOC_KEEP_SIZE, _FALLOC_PUNCH_HOLE = 1, 2
PAGE_BYTES = mmap.PAGESIZE


def page_align(size_bytes: int) -> int:
    """The least whole number of pages that holds ``size_bytes``."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def create(name: str, size_bytes: int) -> int:
    """A new zeroed arena of ``size_bytes`` (a multiple of the page size); returns its descriptor.

    The size is sealed, so no holder of the descriptor can make another's mapping fault. Only the
    owner may open it again (mode 0400): /proc/<pid>/fd is no way around a read-only descriptor for
    another user. Where the system lacks memfd_create, an unlinked file takes its place, unsealed.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create(f"loaderd-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        descriptor, path = tempfile.mkstemp(prefix="loaderd-")
        os.unlink(path)
    try:
        os.ftruncate(descriptor, size_bytes)
        os.fchmod(descriptor, 0o400)
        _seal(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _seal(descriptor: int) -> None:
    if hasattr(fcntl, "F_ADD_SEALS") and hasattr(os, "memfd_create"):
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def reopen_read_only(descriptor: int) -> int:
    """A second descriptor of the same arena that cannot be written through; the caller closes it."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def populate(mapping: mmap.mmap) -> None:
    """Makes every page of a writable shared mapping present, so that no batch pays for it.

    Takes about 0.3 s a GiB: never in the event loop.
    """
    try:
        mapping.madvise(_MADV_POPULATE_WRITE)
    except OSError:  # before Linux 5.14
        for page in range(0, len(mapping), PAGE_BYTES):
            mapping[page] = mapping[page]


def punch(descriptor: int, size_bytes: int) -> None:
    """Gives the memory of an arena back to the system; whoever has it mapped reads zeros from now on.

    Takes about 0.1 s a GiB: never in the event loop. Raises: OSError.
    """
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(descriptor, _FALLOC_PUNCH_HOLE | _FALLOC_KEEP_SIZE, 0, size_bytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def map_shared(descriptor: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
    """The arena itself: what one process writes the others see."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    return mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED, protection)


def map_private(descriptor: int, size_bytes: int) -> mmap.mmap:
    """A copy-on-write view: a page that this process writes becomes its own."""
    return mmap.mmap(descriptor, size_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
