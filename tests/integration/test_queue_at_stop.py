"""A daemon that is stopped or replaced takes nothing from one trainer to give it to another."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.serving import serving

import loaderd

_CONFIG = """
workers: {count: 1}
memory: 16MiB
datasets:
  indices: {target: "tests.support.case_datasets:Indices", args: {length: 10}}
streams:
  tasks: {dataset: indices, batch_size: 1, mode: queue, sampler: sequential}
"""


def test_batches_in_hand_when_the_daemon_is_stopped_go_to_nobody_else(tmp_path: Path) -> None:
    with serving(_CONFIG, tmp_path) as daemon:
        slow = loaderd.connect("tasks", address=daemon.run_dir, prefetch=3)
        quick = loaderd.connect("tasks", address=daemon.run_dir, timeout_s=1.0)
        with slow, quick:
            slow_batches = iter(slow)
            in_hand = next(slow_batches)
            batches = iter(quick)
            given: list[int] = []
            with pytest.raises(loaderd.DaemonTimeout):  # all that is left is with the slow one
                given.extend(int(batch) for batch in batches)
            assert daemon.stop() == 0
            with pytest.raises(loaderd.DaemonLost):
                next(batches)
            assert given
            assert int(in_hand) not in given
            assert len(given) < 9
            rest = int(next(slow_batches))
            assert rest not in given
