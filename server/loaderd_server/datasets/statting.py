"""What the file system says of a dataset's files, as one text that changes when a file does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

#: Of a file that is not there: no file has it.
_GONE = (-1, -1)


def stat_of(path: str | bytes | os.PathLike[str]) -> tuple[int, int]:
    """Size (bytes) and time of the last change (ns) of a file; (-1, -1) where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return _GONE
    return found.st_size, found.st_mtime_ns


def digest(parts: Iterable[bytes], stats: Iterable[tuple[int, int]]) -> str:
    """A digest of names and what ``stat_of`` says of their files, in order."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little") + part)
    numbers: npt.NDArray[np.int64] = np.array(list(stats), np.int64)
    hashed.update(numbers.tobytes())
    return hashed.hexdigest()
