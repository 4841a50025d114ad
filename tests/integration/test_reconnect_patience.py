"""How long a loader waits for a daemon that comes back is reconnect_s, whatever timeout_s says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.serving import serving, start

import loaderd

_CONFIG = """
workers: {count: 1}
memory: 16MiB
datasets:
  slow: {target: "tests.support.case_datasets:SlowToBuild", args: {length: 40}}
streams:
  train: {dataset: slow, batch_size: 4, sampler: sequential}
"""


def _next(loader: loaderd.Loader, batches: Iterator[Any]) -> int:
    """The next batch's first row; only a daemon that is attached again may be slow with it."""
    while True:
        try:
            return int(next(batches)[0, 0])
        except loaderd.DaemonTimeout:
            assert loader.stats().reconnects == 1


def test_a_daemon_that_opens_for_longer_than_timeout_s_is_waited_for(tmp_path: Path) -> None:
    with serving(_CONFIG, tmp_path) as first:
        with loaderd.connect("train", address=first.run_dir, reconnect_s=60) as loader:
            batches = iter(loader)
            found = [int(next(batches)[0, 0])]
            loader.options = dataclasses.replace(loader.options, timeout_s=0.5)
            first.process.kill()
            first.process.wait(10)
            second = start(_CONFIG, tmp_path)
            try:
                found += [_next(loader, batches) for _ in range(9)]
            finally:
                second.stop()
                assert second.process.stderr is not None
                second.process.stderr.close()
    assert found == list(range(0, 40, 4))
    assert loader.stats().reconnects == 1
