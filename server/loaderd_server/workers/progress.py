"""The row a worker is at, on a page that it and the daemon map: to name the sample when it dies.

Diagnostics only: one writer, one reader that looks when the writer is gone, nothing depends on it.
"""

from __future__ import annotations

import mmap
import os
import struct

_ROW = struct.Struct("<q")
_NONE = -1


def create() -> int:
    """A descriptor of a new page."""
    descriptor = os.memfd_create("loaderd-progress", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor


class ProgressPage:
    """The page, mapped. Takes the descriptor over."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)

    def at(self, row: int) -> None:
        """The worker begins a row."""
        _ROW.pack_into(self._page, 0, row)

    def clear(self) -> None:
        """The worker is between tasks."""
        _ROW.pack_into(self._page, 0, _NONE)

    def read(self) -> int | None:
        """The row begun last, None between tasks."""
        row: int = _ROW.unpack_from(self._page)[0]
        return None if row == _NONE else row

    def close(self) -> None:
        """Unmaps the page."""
        self._page.close()
