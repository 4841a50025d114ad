"""How long a loader waits for a daemon that comes back is reconnect_s, whatever timeout_s says."""

from __future__ import annotations

from pathlib import Path

from tests.support.serving import serving, start

import loaderd

_CONFIG = """
workers: {count: 1}
memory: 16MiB
datasets:
  slow: {target: "tests.support.case_datasets:SlowToBuild", args: {length: 12}}
streams:
  train: {dataset: slow, batch_size: 4, sampler: sequential}
"""


def test_a_daemon_that_opens_for_longer_than_timeout_s_is_waited_for(tmp_path: Path) -> None:
    with serving(_CONFIG, tmp_path) as first:
        loader = loaderd.connect("train", address=first.run_dir, timeout_s=1.0, reconnect_s=60)
        iterator = iter(loader)
        found = [int(next(iterator)[0, 0])]
        first.process.kill()
        first.process.wait(10)
        second = start(_CONFIG, tmp_path)
        try:
            found += [int(batch[0, 0]) for batch in iterator]
            assert found == [0, 4, 8]
            assert loader.stats().reconnects == 1
        finally:
            loader.close()
            second.stop()
            assert second.process.stderr is not None
            second.process.stderr.close()
