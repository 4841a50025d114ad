"""What needs a CUDA device; `make test-gpu` runs it, and says so where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.serving import serving

import loaderd

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CONFIG = """
workers: {count: 2}
datasets:
  numbers: {target: "tests.support.datasets:Numbers", args: {length: 64, shape: [3, 8]}}
streams:
  train: {dataset: numbers, batch_size: 8, sampler: sequential}
"""


def test_a_view_reaches_the_device_with_its_values(tmp_path: Path) -> None:
    with (
        serving(CONFIG, tmp_path) as daemon,
        loaderd.connect("train", address=daemon.run_dir) as loader,
    ):
        for batch in loader:
            assert torch.equal(batch.to("cuda").cpu(), batch)
