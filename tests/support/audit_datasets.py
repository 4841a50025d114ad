"""Datasets for audits: one that keeps loaderd's rules, and ones that break them."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch


class Box(NamedTuple):
    """A record within a sample."""

    corner: torch.Tensor
    label: str


class Arrays:
    """Small samples with every kind of leaf; each draws from the generators that loaderd seeds."""

    def __init__(self, length: int = 26) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "image": np.full((2, 3), index, dtype=np.uint8),
            "noise": torch.rand(3),
            "box": Box(torch.tensor([index, index + 1]), f"box {index}"),
            "name": (f"name {index}", index),
            "missing": None,
            "half": torch.tensor(index, dtype=torch.bfloat16),
        }


class FromTheSystem(Arrays):
    """Draws from the system's own randomness, which nobody can seed."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "bytes": np.frombuffer(os.urandom(8), dtype=np.uint8)}


class OddOnesFail(Arrays):
    """Every fifth sample raises."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index % 5 == 3:
            raise ValueError(f"sample {index} is broken")
        return super().__getitem__(index)


class KnowsItsWorker(Arrays):
    """Gives away in which process a sample was made."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "pid": os.getpid()}


def ragged(samples: list[dict[str, Any]]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """A collate whose batches have no rows."""
    return [torch.as_tensor(sample["image"]) for sample in samples], torch.rand(2)


def every_other(_dataset: Any, *, seed: int, epoch: int) -> list[int]:
    """A sampler that leaves some out and repeats one."""
    return [0, 2, 4, 4, 6, 8, seed, epoch]
