"""What a process holds: descriptors by kind, memory of its own; and which processes belong to a run."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable

import psutil

#: In the environment of every process of a run, with the run's own name.
MARK = "LOADERD_CHAOS"


def descriptors(pid: int) -> Counter[str]:
    """Open descriptors by kind: socket, pipe, memfd by name, pidfd, file."""
    found: Counter[str] = Counter()
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        try:
            found[_kind(os.readlink(f"{folder}/{number}"))] += 1
        except OSError:  # closed meanwhile
            continue
    return found


def _kind(link: str) -> str:
    named = re.match(r"/memfd:[a-z -]*|anon_inode:\[?[a-z]+|socket|pipe", link)
    return named.group() if named else "file"


def least_descriptors(pid: int, seconds: float) -> Counter[str]:
    """By kind, the fewest at any time of so many seconds: what is only passing through is left out."""
    deadline = time.monotonic() + seconds
    least = descriptors(pid)
    while time.monotonic() < deadline:
        least &= descriptors(pid)
        time.sleep(0.02)
    return least


def own_bytes(pid: int) -> int:
    """Resident memory that is not of files or shared memory."""
    memory = psutil.Process(pid).memory_info()
    return int(memory.rss - memory.shared)


def workers_of(daemon: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """A daemon's zygotes, and the workers that they have forked."""
    zygotes = _children([psutil.Process(daemon)])
    return zygotes, _children(zygotes)


def _children(parents: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = []
    for parent in parents:
        try:
            found += parent.children()
        except psutil.NoSuchProcess:
            continue
    return found


def processes_marked(run: str) -> list[str]:
    """Every process of a run that is there, in words."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == run:
                found.append(f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}")
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
