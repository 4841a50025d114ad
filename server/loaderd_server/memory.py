"""How much memory there is, and whether an arena may take its part of it.

A memfd has no limit of its own: allocating past the memory there is brings the OOM killer, not an
error. So this check, before an arena is made, is the guarantee. Sources: cgroup v1 (memory.limit_in_bytes)
and v2 (memory.max) of every ancestor, /proc/meminfo's MemAvailable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loaderd_protocol.errors import OutOfMemory
from loaderd_server.units import show_size


@dataclass(frozen=True, slots=True)
class Available:
    """Bytes that can still be used, and what says so."""

    size_bytes: int
    by: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the kernel tells of memory; tests point it at made-up trees."""

    proc: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")

    def total_bytes(self) -> int:
        """The memory of the machine."""
        return _meminfo(self.proc, "MemTotal")

    def available(self) -> Available:
        """The least of what every limit leaves."""
        found = [Available(_meminfo(self.proc, "MemAvailable"), "the machine (MemAvailable)")]
        found += self._cgroup_rooms()
        return min(found, key=lambda room: room.size_bytes)

    def _cgroup_rooms(self) -> Iterator[Available]:
        for line in _read(self.proc / "self" / "cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                for root in (self.cgroups, self.cgroups / "unified"):
                    yield from _rooms(root, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                yield from _rooms(
                    self.cgroups / "memory", path, "memory.limit_in_bytes",
                    "memory.usage_in_bytes", "total_inactive_file",
                )  # fmt: skip


class Budget:
    """The configured ``memory``, and what of it arenas have taken."""

    def __init__(
        self, budget_bytes: int, reserve_bytes: int, machine: Machine | None = None
    ) -> None:
        self.budget_bytes = budget_bytes
        self._reserve_bytes = reserve_bytes
        self.machine = machine or Machine()
        self.taken_bytes = 0

    def check_machine(self) -> None:
        """Whether the budget itself can be had.

        Raises: OutOfMemory.
        """
        room = self.machine.available()
        usable = min(room.size_bytes - self._reserve_bytes, self.machine.total_bytes())
        if self.budget_bytes > self.machine.total_bytes():
            total = self.machine.total_bytes()
            raise OutOfMemory(
                f"memory: {show_size(self.budget_bytes)} is more than this machine has "
                f"({show_size(total)}; available now: {show_size(max(usable, 0))} by {room.by}). "
                f"Lower the setting `memory`."
            )

    def take(self, needed_bytes: int, what: str, settings: str) -> None:
        """Takes memory for an arena, before it is made.

        ``what`` it is for and the ``settings`` that change the need, for the error's text.
        Raises: OutOfMemory.
        """
        left = self.budget_bytes - self.taken_bytes
        if needed_bytes > left:
            raise OutOfMemory(
                f"{what} needs {show_size(needed_bytes)}; of the budget `memory` "
                f"({show_size(self.budget_bytes)}) {show_size(left)} are left. Raise `memory`, or "
                f"lower {settings}."
            )
        room = self.machine.available()
        usable = room.size_bytes - self._reserve_bytes
        if needed_bytes > usable:
            raise OutOfMemory(
                f"{what} needs {show_size(needed_bytes)}; {room.by} leaves {show_size(max(usable, 0))} "
                f"(after `reserve` {show_size(self._reserve_bytes)}). Lower {settings}, give the "
                f"daemon more memory, or lower `reserve`."
            )
        self.taken_bytes += needed_bytes

    def give_back(self, size_bytes: int) -> None:
        """An arena could not be made, or is gone."""
        self.taken_bytes -= size_bytes


def _rooms(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[Available]:
    """What each group from ``path`` up to the root leaves."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for depth in range(len(parts), -1, -1):
        group = root.joinpath(*parts[:depth])
        allowed = _number(group / limit)
        used = _number(group / usage)
        if allowed is None or used is None:
            continue
        used -= min(used, _field(_read(group / "memory.stat"), reclaimable))
        yield Available(allowed - used, f"the memory cgroup {group}")


def _meminfo(proc: Path, name: str) -> int:
    return _field(_read(proc / "meminfo"), f"{name}:") * 1024


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return int(words[1])
    return 0


def _number(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
