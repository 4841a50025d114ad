"""Every test is checked for what it leaves behind: processes, threads, descriptors, shared memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

SETTLE_S = 5.0


@dataclass(frozen=True)
class Belongings:
    """What this process holds at one moment."""

    children: frozenset[int]
    threads: frozenset[str]
    descriptors: frozenset[str]
    shared_memory: frozenset[str]


def _descriptors() -> frozenset[str]:
    links = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(("socket:", "/memfd:", "pipe:", "anon_inode:[pidfd]")):
            links.add(f"{number} -> {target}")
    return frozenset(links)


def _belongings() -> Belongings:
    return Belongings(
        frozenset(child.pid for child in psutil.Process().children(recursive=True)),
        frozenset(t.name for t in threading.enumerate() if not t.daemon),
        _descriptors(),
        frozenset(name for name in os.listdir("/dev/shm") if not _is_others(name)),
    )


def _is_others(name: str) -> bool:
    """Whether another program's: semaphores of multiprocessing, tensors of a stock DataLoader."""
    if name.startswith("sem."):
        return True
    owner = name.split("_")[1] if name.startswith("torch_") else ""
    if not owner.isdigit() or not psutil.pid_exists(int(owner)):
        return False
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return int(owner) not in ours


def _is_of(pid: int, earlier: frozenset[int]) -> bool:
    """Whether a process that was there before started it, as a daemon starts workers on need."""
    try:
        return any(parent.pid in earlier for parent in psutil.Process(pid).parents())
    except psutil.NoSuchProcess:
        return True


def _left_over(before: Belongings, after: Belongings) -> str:
    left = []
    for name in Belongings.__dataclass_fields__:
        new = getattr(after, name) - getattr(before, name)
        if name == "children":
            new = frozenset(pid for pid in new if not _is_of(pid, before.children))
        if new:
            left.append(f"{name}: {sorted(map(str, new))}")
    return "; ".join(left)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, by a short name: the path of a unix socket holds 107 bytes."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = _belongings()
    yield
    deadline = time.monotonic() + SETTLE_S
    while True:
        gc.collect()
        left = _left_over(before, _belongings())
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"left behind after {SETTLE_S:g} s: {left}")
        threading.Event().wait(0.02)
