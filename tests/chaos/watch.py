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
        self._sizes = {role.name: 0 for role in ROLES}
        #: For how long each has not moved, without the time that it or the daemon was stopped.
        self._still_s = {role.name: 0.0 for role in ROLES}
        self._looked = time.monotonic()
        self.longest_s = 0.0

    def look(self) -> None:
        """Notes who has moved.

        Raises: Failed for a role that has not for too long.
        """
        now = time.monotonic()
        passed_s, self._looked = now - self._looked, now
        stopped = self._fleet.stopped
        for name, size in self._sizes.items():
            self._sizes[name] = size_of(self._fleet.home / f"{name}.journal")
            pid = self._fleet.trainers.get(name, 0)
            if self._sizes[name] != size:
                self._still_s[name] = 0.0
            elif pid not in stopped and self._fleet.daemon_pid() not in stopped:
                self._still_s[name] += passed_s
            self.longest_s = max(self.longest_s, self._still_s[name])
            if self._still_s[name] > HANG_S:
                raise Failed(f"{name} (pid {pid}) hangs: no batch for {self._still_s[name]:.0f} s")


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
