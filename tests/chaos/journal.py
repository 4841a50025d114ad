"""Journals: what each role was given, line by line, on a file that outlives its processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

#: began: a process begins. took: it has a batch in hand. state: it is done with that, and this is its
#: state now. ended: an epoch is over. left: it was told to stop. wrong: it found a fault and ends.
Kind = Literal["began", "took", "state", "ended", "left", "wrong"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. ``at`` is the machine's monotonic clock; ``daemon`` the pid it is attached to."""

    kind: Kind
    at: float
    pid: int
    daemon: int = 0
    epoch: int = 0
    batch: int = 0
    note: Any = None


class Journal:
    """Written by one process at a time. A line is there whole, or is not read."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        text = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        whole = text.rfind(b"\n") + 1  # a kill can cut the last line short
        os.ftruncate(self._descriptor, whole)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def write(self, kind: Kind, **values: Any) -> None:
        """Adds a line."""
        fields = {"kind": kind, "at": time.monotonic(), "pid": os.getpid(), **values}
        os.write(self._descriptor, json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)


def read(path: Path) -> Iterator[Entry]:
    """Every whole line of a journal; none where there is no file yet."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield Entry(**json.loads(line))
