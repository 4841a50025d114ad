"""What every zygote and worker does first: die with its parent, be named, keep to its cores."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

import setproctitle

_PR_SET_PDEATHSIG = 1

#: Environment of zygotes: one thread of math each, whatever the library.
SINGLE_THREADED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}

#: Environment of zygotes, beneath the user's own: glibc keeps what was freed of a batch for the next
#: one. By default it gives back to the system what is over 256 KiB, and takes it anew page by page:
#: 40 us for each image of 224x224x3.
KEEPS_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}


def die_with(parent: int) -> None:
    """Has the kernel kill this process when the thread that made it ends; checks that it has not yet.

    The setting is not inherited over fork, so each process makes it anew.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def name(title: str) -> None:
    """Names this process in ps and top."""
    setproctitle.setproctitle(f"loaderd: {title}")


def print_to_stderr() -> None:
    """User code that prints must not meet a protocol or a pipe: stdout goes where logs go."""
    flush_output()
    os.dup2(2, 1)


def flush_output() -> None:
    """What user code has printed goes out, unless it closed the stream, or its reader is gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def default_signals() -> None:
    """Ctrl-C and a terminal's end reach the whole process group: the daemon alone decides on them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def settle(worker: int, affinity: str, niceness: int) -> list[str]:
    """Keeps a worker to its cores and its niceness; returns what the system refused."""
    refused = []
    try:
        cores = _cores(worker, affinity)
        if cores is not None:
            os.sched_setaffinity(0, cores)
    except OSError as error:
        refused.append(f"workers.affinity: {affinity} was refused: {error.strerror}")
    try:
        if niceness:
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError as error:
        refused.append(f"workers.niceness: {niceness} was refused: {error.strerror}")
    return refused


def _cores(worker: int, affinity: str) -> set[int] | None:
    allowed = sorted(os.sched_getaffinity(0))
    if affinity == "cores":
        return {allowed[worker % len(allowed)]}
    if affinity == "numa":
        nodes = [cores & set(allowed) for cores in _numa_nodes()]
        usable = [cores for cores in nodes if cores]
        return usable[worker % len(usable)] if usable else None
    return None


def _numa_nodes() -> list[set[int]]:
    lists = sorted(Path("/sys/devices/system/node").glob("node[0-9]*/cpulist"))
    return [parse_cpu_list(file.read_text()) for file in lists]


def parse_cpu_list(text: str) -> set[int]:
    """The cores in the kernel's notation, such as "0-3,8"."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return cores


def rss_anon_bytes() -> int:
    """This process's own anonymous memory: what it shares with its zygote does not count."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
