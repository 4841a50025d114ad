"""Streams in every mode over one small dataset, and what each trainer of them must be given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler

import loaderd

LENGTH, BATCH, SEED = 203, 8, 11
MODES = ("broadcast", "shard", "queue", "independent")

CONFIG = """
workers: {count: 2}
memory: 256MiB
datasets:
  rows: {target: "tests.support.sharing:Rows"}
streams:
""" + "".join(
    f"  {mode}: {{dataset: rows, batch_size: {BATCH}, mode: {mode}, seed: {SEED}}}\n"
    for mode in MODES
)


class Rows(Dataset[dict[str, Any]]):
    """Row i tells its index, and has bytes that only it has."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        bits = np.random.default_rng(index).random(16, dtype=np.float32)
        return {"index": index, "bits": torch.from_numpy(bits)}


def indices(batch: dict[str, Any]) -> list[int]:
    """The indices of a batch's rows; each row must have its own bytes."""
    found: list[int] = batch["index"].tolist()
    wanted = torch.stack([Rows()[index]["bits"] for index in found])
    assert torch.equal(batch["bits"], wanted)
    return found


def read(batches: Iterable[dict[str, Any]]) -> list[list[int]]:
    """The indices of each batch."""
    return [indices(batch) for batch in batches]


def take(iterator: Iterator[dict[str, Any]], count: int) -> list[list[int]]:
    """The indices of the next ``count`` batches."""
    return [indices(next(iterator)) for _ in range(count)]


def order(epoch: int = 0, seed: int = SEED) -> list[int]:
    """The order of an epoch in ``broadcast`` and ``queue``: torch's RandomSampler's."""
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(LENGTH, generator=generator).tolist()


def share(rank: int, world_size: int, epoch: int = 0) -> list[int]:
    """A rank's order: torch's DistributedSampler's."""
    sampler: DistributedSampler[int] = DistributedSampler(
        Rows(), world_size, rank, shuffle=True, seed=SEED
    )
    sampler.set_epoch(epoch)
    return list(sampler)


def cut(indices_in_order: list[int], size: int = BATCH) -> list[list[int]]:
    """An order in batches."""
    return [indices_in_order[a : a + size] for a in range(0, len(indices_in_order), size)]


def connect(mode: str, run_dir: Path, **arguments: Any) -> loaderd.Loader:
    """A loader of the stream of that mode."""
    return loaderd.connect(mode, address=run_dir, timeout_s=60, **arguments)


#: A trainer process: says the indices of each batch it is told to take.
TRAINER = """
from tests.support.sharing import connect, indices
from pathlib import Path
import json
arguments = json.loads(sys.argv[3])
loader = connect(sys.argv[2], Path(ADDRESS), **arguments)
iterator = iter(loader)
say("ready")
while (count := wait()) not in ("", "end"):
    for _ in range(int(count)):
        batch = next(iterator, None)
        say("over" if batch is None else json.dumps(indices(batch)))
        if batch is None:
            break
"""
