"""Watching a run: who makes no progress, and what the daemon's and the trainers' memory comes to."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
from tests.chaos.belongings import own_bytes
from tests.chaos.fleet import Failed, Fleet
from tests.chaos.material import ROLES

#: A trainer that is not stopped takes its next batch within this time, whatever happens.
HANG_S = 30.0
#: A daemon's memory is looked at from then on: its caches have filled.
_GROWN_UP_S = 8.0


class ProgressWatch:
    """Holds every role to its progress: its journal grows."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._seen = {role.name: (0, time.monotonic()) for role in ROLES}

    def look(self) -> None:
        """Notes who has moved.

        Raises: Failed for a role that has not for too long.
        """
        now = time.monotonic()
        is_daemon_stopped = self._fleet.daemon_pid() in self._fleet.stopped
        for name, (size, since) in self._seen.items():
            found = size_of(self._fleet.home / f"{name}.journal")
            is_stopped = self._fleet.trainers.get(name, 0) in self._fleet.stopped
            if found != size or is_stopped or is_daemon_stopped:
                self._seen[name] = found, now
            elif now - since > HANG_S:
                raise Failed(
                    f"{name} (pid {self._fleet.trainers.get(name)}) hangs: {now - since:.0f} s"
                )


class MemoryWatch:
    """How much each daemon's own memory grows from its first calm on."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def look(self) -> None:
        """Takes a sample of the daemon that runs."""
        pid = self._fleet.daemon_pid()
        if not pid or time.monotonic() - self._fleet.daemon_since < _GROWN_UP_S:
            return
        try:
            size = own_bytes(pid)
        except psutil.NoSuchProcess:
            return
        self._first.setdefault(pid, size)
        self._last[pid] = size

    def growth_bytes(self) -> int:
        """The most that any daemon grew."""
        return max((self._last[pid] - first for pid, first in self._first.items()), default=0)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where it is not there yet."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
