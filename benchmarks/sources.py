"""Datasets and daemon configs that the benchmarks share; every contender reads the same dataset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from examples.quickstart.make_photos import PER_CLASS, make

from loaderd_server.datasets import ImageFolder
from loaderd_server.transforms import HorizontalFlip, RandomResizedCrop

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / ".bench"
BATCH = 64
WORKERS = 2
#: Epochs are made so long that no contender meets the end of one while it is measured.
REPEATS = 500


class Photographs:
    """The demo's photographs, over and over; sample = (uint8 HWC, class)."""

    uses_only_given_rng = True

    def __init__(self, root: str) -> None:
        self._folder = ImageFolder(root)

    def __len__(self) -> int:
        return len(self._folder) * REPEATS

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.uint8], int]:
        return self._folder[index % len(self._folder)]


class Transformed:
    """Photographs with the transforms inside, for contenders that have no other place for them."""

    def __init__(self, root: str) -> None:
        self._photographs = Photographs(root)
        self._crop, self._flip = RandomResizedCrop(224), HorizontalFlip()
        self._rng = np.random.Generator(np.random.Philox(0))

    def __len__(self) -> int:
        return len(self._photographs)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.uint8], int]:
        sample: tuple[npt.NDArray[np.uint8], int] = self._flip(
            self._crop(self._photographs[index], self._rng), self._rng
        )
        return sample


class Floats:
    """256 images of 3x224x224 float32 in memory, over and over; sample = a tensor of one."""

    uses_only_given_rng = True

    def __init__(self, images: int = 256) -> None:
        self._data = torch.empty(images, 3, 224, 224)
        self._data[:] = torch.arange(images, dtype=torch.float32)[:, None, None, None]

    def __len__(self) -> int:
        return len(self._data) * REPEATS

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._data[index % len(self._data)]


class Tiny:
    """16 floats a sample."""

    uses_only_given_rng = True

    def __init__(self) -> None:
        self._data = np.arange(4096 * 16, dtype=np.float32).reshape(4096, 16)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._data[index]
        return row


class Paced(Tiny):
    """16 floats a sample, made no faster than a trainer takes them, so that it always waits."""

    PERIOD_S = 0.002

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        time.sleep(self.PERIOD_S)
        return super().__getitem__(index)


def photographs(per_class: int = PER_CLASS) -> Path:
    """The photographs' folder, made if it is not there."""
    folder = RESULTS / f"photos-{per_class}"
    RESULTS.mkdir(exist_ok=True)
    make(folder, per_class)
    return folder


def config(
    dataset: str,
    args: dict[str, Any] | None = None,
    batch_size: int = BATCH,
    workers: int = WORKERS,
    transform: str = "[]",
) -> str:
    """The text of a daemon's config with one stream, ``train``, on a dataset of this module."""
    return f"""
python_path: [{ROOT}]
workers: {{count: {workers}}}
datasets:
  data:
    target: benchmarks.sources:{dataset}
    args: {args or {}}
streams:
  train:
    dataset: data
    batch_size: {batch_size}
    sampler: random
    drop_last: true
    transform: {transform}
"""
