"""One stream of every mode, trainers that wait for each other, and iterable datasets beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.support.serving import Daemon
from tests.support.sharing import MODES, cut, order, read, share

import loaderd
from loaderd_protocol.address import resolve
from loaderd_server.cli.status import ask

LAGGING = (*MODES, "wait")
BATCH = 8


def settings_of(mode: str) -> str:
    return "lag: wait, patience_s: 60" if mode == "wait" else f"mode: {mode}"


def rows_streams() -> str:
    return "".join(
        f"  {mode}: {{dataset: rows, batch_size: {BATCH}, seed: 11, {settings_of(mode)}}}\n"
        for mode in LAGGING
    )


HEAD = """
workers: {count: 2}
memory: 256MiB
datasets:
  rows: {target: "tests.support.sharing:Rows"}
  resumable: {target: "tests.support.case_iterables:Resumable", args: {length: 160}}
  plain: {target: "tests.support.case_iterables:Items", args: {length: 160}}
"""
#: What the iterable streams give.
COUNTED = [[*range(a, a + 4)] for a in range(0, 160, 4)]
ITERABLE = """\
  plain: {dataset: plain, batch_size: 4}
  resumable: {dataset: resumable, batch_size: 4}
"""


def connect(daemon: Daemon, stream: str, **arguments: Any) -> loaderd.Loader:
    return loaderd.connect(stream, address=daemon.run_dir, timeout_s=60, **arguments)


def order_of(mode: str, daemon: Daemon, epoch: int) -> list[list[int]]:
    """The truth; of ``independent``, whose order is loaderd's own, what another trainer is given."""
    if mode == "shard":
        return cut(share(0, 1, epoch))
    if mode != "independent":
        return cut(order(epoch))
    with connect(daemon, mode, start=(epoch, 0)) as loader:
        return read(loader)


def trainers(daemon: Daemon) -> int:
    """How many subscriptions there are."""
    return len(json.loads(ask(resolve(daemon.run_dir)))["trainers"])


def held(daemon: Daemon, stream: str) -> int:
    """Slots of the stream that trainers hold."""
    document = json.loads(ask(resolve(daemon.run_dir)))
    (found,) = [s for s in document["streams"] if s["name"] == stream]
    return int(found["slots_held"])


def eventually(is_so: Callable[[], bool], deadline_s: float) -> bool:
    """Looks until it is so; each look asks the daemon."""
    end = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > end:
            return False
    return True
