"""What a state counts: samples that there are, whatever the last batch's size."""

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
  whole: {dataset: indices, batch_size: 4}
  parts: {dataset: indices, batch_size: 2, mode: shard}
"""


@pytest.mark.parametrize(
    ("stream", "counts"), [("whole", [4, 8, 10]), ("parts", [2, 4, 5])], ids=["whole", "parts"]
)
def test_a_state_counts_the_samples_of_a_shorter_last_batch(
    tmp_path: Path, stream: str, counts: list[int]
) -> None:
    with serving(_CONFIG, tmp_path) as daemon:
        with loaderd.connect(stream, address=daemon.run_dir, rank=1, world_size=2) as loader:
            assert [loader.state_dict()["samples"] for _batch in loader] == counts
