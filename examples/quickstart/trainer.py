"""One of the demo's trainers: a process that trains and reports over a pipe."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from examples.quickstart.train import make_model, prepare
from torch import nn

import loaderd


@dataclass(frozen=True)
class Progress:
    """So many batches of all epochs are done."""

    done: int
    of: int
    loss: float


@dataclass(frozen=True)
class Report:
    """How a training went. Rates per second, times in seconds; ``checksum`` is of all batches."""

    samples: int
    samples_per_s: float
    wait_share: float
    loss: float
    accuracy: float
    checksum: int


def run(pipe: Connection, address: Path, learning_rate: float, epochs: int) -> None:
    """Trains on the stream ``train`` and sends Progress and in the end a Report, or the error."""
    # One core each: the trainers and the daemon's workers share the machine.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        pipe.send(_train(pipe, address, learning_rate, epochs))
    except loaderd.LoaderdError as error:
        pipe.send(f"{type(error).__name__}: {error}")


def _train(pipe: Connection, address: Path, learning_rate: float, epochs: int) -> Report:
    model, loss_of = make_model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    checksum = right = done = 0
    with loaderd.connect("train", address=address, timeout_s=60) as loader:
        began = time.perf_counter()
        for _ in range(epochs):
            right = 0
            for images, labels in loader:
                checksum = zlib.crc32(labels.numpy(), zlib.crc32(images.numpy(), checksum))
                scores = model(prepare(images))
                loss = loss_of(scores, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += int((scores.argmax(1) == labels).sum())
                done += 1
                pipe.send(Progress(done, epochs * len(loader), loss.item()))
        took = time.perf_counter() - began
        stats = loader.stats()
    return Report(
        stats.samples, stats.samples / took, stats.wait_share, loss.item(),
        right * epochs / stats.samples, checksum,
    )  # fmt: skip
