"""The status document as tables for a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from loaderd_server.units import show_size


def show(document: str) -> None:
    """Prints streams, workers and trainers."""
    status = json.loads(document)
    # Piped into a file or a script, nothing is cut.
    console = Console(width=None if sys.stdout.isatty() else 200)
    memory = status["memory"]
    console.print(
        f"loaderd {status['version']}, pid {status['pid']}, {status['run_dir']}, "
        f"up {status['uptime_s']:.0f} s, arenas {show_size(memory['arena_bytes'])} of "
        f"{show_size(memory['budget_bytes'])}",
        highlight=False,
    )
    console.print(_streams(status["streams"]))
    console.print(_workers(status["workers"]))
    console.print(_trainers(status["trainers"]))


def _streams(streams: Sequence[Any]) -> Table:
    table = _table("streams", "stream", "mode", "state", "slots", "made", "remade", "announced",
                   "failed", "samples loaded")  # fmt: skip
    for s in streams:
        slots = "/".join(
            str(s[f"slots_{state}"]) for state in ("free", "filling", "ready", "held", "kept")
        )
        table.add_row(
            s["name"], s["mode"], s["phase"], slots, str(s["batches_made"]),
            str(s["batches_remade"]), str(s["batches_announced"]), str(s["batches_failed"]),
            str(s["samples_loaded"]),
        )  # fmt: skip
    table.caption = "slots: free/filling/ready/held/kept"
    return table


def _workers(workers: Sequence[Any]) -> Table:
    table = _table("workers", "worker", "dataset", "pid", "state", "tasks", "busy s", "at")
    for w in workers:
        table.add_row(
            str(w["number"]), w["dataset"], str(w["pid"]), w["state"], str(w["tasks_done"]),
            f"{w['busy_s']:.1f}", w["task"],
        )  # fmt: skip
    return table


def _trainers(trainers: Sequence[Any]) -> Table:
    table = _table("trainers", "lease", "pid", "stream", "rank", "epoch", "batch", "credits",
                   "waited s")  # fmt: skip
    for t in trainers:
        table.add_row(
            str(t["lease"]), str(t["pid"]), t["stream"], f"{t['rank']}/{t['world_size']}",
            str(t["epoch"]), str(t["batch"]),
            f"{t['credits_outstanding']}/{t['credits_granted']}", f"{t['waited_s']:.1f}",
        )  # fmt: skip
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    return table
