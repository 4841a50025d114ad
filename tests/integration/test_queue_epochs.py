"""A queue's epochs that are over hold nothing of the daemon's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.support import case_datasets
from tests.support.serving import serving

import loaderd

_CONFIG = """
workers: {count: 1}
memory: 64MiB
datasets:
  indices: {target: "tests.integration.test_queue_epochs:Whole", args: {length: 150000}}
streams:
  tasks: {dataset: indices, batch_size: 75000, mode: queue}
"""


class Whole(case_datasets.Indices):
    """So long that its orders are mapped, not copied; and its batches cost next to nothing."""

    def batch_load(self, indices: Sequence[int], _collate: Callable[[Any], Any]) -> Any:
        return torch.tensor(indices)


def _orders(pid: int) -> int:
    folder = f"/proc/{pid}/fd"
    links = []
    for number in os.listdir(folder):
        try:
            links.append(os.readlink(f"{folder}/{number}"))
        except FileNotFoundError:  # closed meanwhile
            continue
    return sum("loaderd-order" in link for link in links)


def test_the_orders_of_epochs_that_are_over_are_let_go_of(tmp_path: Path) -> None:
    with serving(_CONFIG, tmp_path) as daemon:
        with loaderd.connect("tasks", address=daemon.run_dir) as loader:
            held = []
            for _epoch in range(50):
                assert sum(1 for _batch in loader) == 2
                held.append(_orders(daemon.pid))
    assert max(held) > 0, "no order is mapped: nothing was looked at"
    assert max(held[40:]) <= max(held[10:20]) + 2, held
