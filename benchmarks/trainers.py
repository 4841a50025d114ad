"""Trainers as processes: each takes batches from one source in the same window of time.

All of a run's trainers set up, meet, and then go by the machine's one monotonic clock:
``warm_s`` of which nothing counts, then ``window_s`` that counts. A rate runs from the first to the
last batch in the window, so what was prefetched before it does not count.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from benchmarks import sources
from benchmarks.processes import Meeting, together
from torch.utils.data import DataLoader

import loaderd

#: A trainer counts on past its window until it has so many, else two prefetched ones are a rate.
_LEAST_BATCHES = 8


@dataclass(frozen=True)
class Window:
    """When trainers count, in seconds from their meeting on, and whether they read every byte."""

    warm_s: float
    window_s: float
    read: bool = False


@dataclass(frozen=True)
class Rate:
    """What one trainer got."""

    rows_per_s: float
    bytes_per_s: float


class Source(Protocol):
    """Where a trainer's batches come from; travels to its process."""

    def batches(self) -> contextlib.AbstractContextManager[Iterator[Any]]:
        """An endless iterator, for the length of a block."""
        ...


@dataclass(frozen=True)
class Shared:
    """A running daemon's stream ``train``."""

    address: Path

    @contextmanager
    def batches(self) -> Iterator[Iterator[Any]]:
        """The loader's batches."""
        with loaderd.connect("train", address=self.address, timeout_s=60) as loader:
            yield _endless(loader)


@dataclass(frozen=True)
class Stock:
    """A torch DataLoader of its own, with persistent workers."""

    dataset: str
    args: tuple[Any, ...] = ()
    workers: int = sources.WORKERS

    @contextmanager
    def batches(self) -> Iterator[Iterator[Any]]:
        """The DataLoader's batches; it is built before the block begins."""
        dataset = getattr(sources, self.dataset)(*self.args)
        loader = DataLoader(
            dataset, sources.BATCH, shuffle=True, drop_last=True, num_workers=self.workers,
            persistent_workers=self.workers > 0,
        )  # fmt: skip
        yield _endless(loader)


@dataclass(frozen=True)
class Bare:
    """No loader: this process itself decodes, transforms and stacks into one buffer."""

    root: str
    start: int

    @contextmanager
    def batches(self) -> Iterator[Iterator[Any]]:
        """The loop's batches."""
        yield self._loop()

    def _loop(self) -> Iterator[Any]:
        dataset = sources.Transformed(self.root)
        order = np.random.default_rng(self.start).permutation(len(dataset)).tolist()
        buffer = np.empty((sources.BATCH, 224, 224, 3), np.uint8)
        for first in range(0, len(order) - sources.BATCH, sources.BATCH):
            samples = [dataset[index] for index in order[first : first + sources.BATCH]]
            np.stack([image for image, _ in samples], out=buffer)
            labels = np.array([label for _, label in samples])
            yield torch.from_numpy(buffer), torch.from_numpy(labels)


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def rates(contenders: list[Source], window: Window) -> list[Rate]:
    """Runs a trainer a source, all at the same time; their rates in that order.

    Raises: JobFailed.
    """
    return together([partial(_trainer, source, window) for source in contenders])


def _trainer(source: Source, window: Window, meeting: Meeting) -> Rate:
    with source.batches() as batches:
        meeting.wait()
        rate = _count(batches, window)
        # Nobody tears down while another still counts.
        meeting.wait()
        return rate


def _count(batches: Iterator[Any], window: Window) -> Rate:
    opens = time.monotonic() + window.warm_s
    closes = opens + window.window_s
    opened = now = 0.0
    taken = rows = size = 0
    while now < closes or taken < _LEAST_BATCHES:
        batch = next(batches)
        tensors = batch if isinstance(batch, tuple | list) else [batch]
        if window.read:
            for tensor in tensors:
                tensor.sum()
        now = time.monotonic()
        if opened:
            taken += 1
            rows += len(tensors[0])
            size += sum(tensor.nbytes for tensor in tensors)
        elif now >= opens:
            opened = now
        del batch, tensors
    return Rate(rows / (now - opened), size / (now - opened))
