"""Iterable datasets of every kind that a user may bring, well and ill."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


def part(count: int) -> range:
    """What of ``range(count)`` is this worker's, as torch's documentation deals it."""
    info = get_worker_info()
    return range(count) if info is None else range(info.id, count, info.num_workers)


class Sharded(IterableDataset[int]):
    """``range(count)``, dealt by get_worker_info."""

    def __init__(self, count: int = 10) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from part(self.count)


class Drawing(IterableDataset[list[float]]):
    """Samples of every global generator, the epoch and what get_worker_info says."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[float]]:
        begun = random.random()
        for number in part(40):
            drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
            yield [float(number), float(self.epoch), begun, *drawn]


class Stateful:
    """Resumes by a state of plain data, an array and a tensor; counts what it draws."""

    def __init__(self, count: int = 30) -> None:
        self.count, self.next = count, 0
        self.drawn: list[int] = []

    def __iter__(self) -> Iterator[int]:
        numbers = part(self.count)
        while self.next < len(numbers):
            self.next += 1
            self.drawn.append(self.next)
            yield self.numbered(numbers[self.next - 1], len(self.drawn))

    @staticmethod
    def numbered(number: int, drawn: int) -> int:
        """The sample of that number, if it is the so-and-so-many-th drawn."""
        return number * 1000 + drawn

    def state_dict(self) -> dict[str, Any]:
        return {"next": (self.next,), "array": np.array([self.next]), "t": torch.tensor(self.next)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self.next,) = state["next"]
        assert state["array"].tolist() == [self.next]
        assert state["t"].item() == self.next


class OwnIterator:
    """Its own iterator, and stateful."""

    def __init__(self, count: int = 10) -> None:
        self.count = count
        self.given: list[int] = []

    def __iter__(self) -> OwnIterator:
        self.given = []
        return self

    def __next__(self) -> int:
        numbers = part(self.count)
        if len(self.given) == len(numbers):
            raise StopIteration
        self.given.append(numbers[len(self.given)])
        return self.given[-1]

    @staticmethod
    def numbered(number: int, drawn: int) -> int:
        """The sample of that number."""
        return number

    def state_dict(self) -> dict[str, Any]:
        return {"given": list(self.given)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = list(state["given"])


class Locked(Sharded):
    """Cannot be copied deeply."""

    def __init__(self, count: int = 10) -> None:
        super().__init__(count)
        self.lock = threading.Lock()


class LockedOwn(OwnIterator):
    """Cannot be copied deeply, and is its own iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class IterOnly(Dataset[int]):
    """torch's map-style base class, with an ``__iter__`` alone."""

    def __iter__(self) -> Iterator[int]:
        yield from part(10)

    def __len__(self) -> int:
        return 10


class Failing(IterableDataset[int]):
    """Raises in place of its sixth sample."""

    def __iter__(self) -> Iterator[int]:
        for number in range(10):
            if number == 5:
                raise KeyError("five")
            yield number


class Rows(IterableDataset[torch.Tensor]):
    """Rows of 1000 floats; keeps count of them in a class attribute."""

    drawn = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in part(10):
            Rows.drawn += 1
            yield torch.full((1000,), float(number))


def ten() -> Iterator[int]:
    """A generator function of ten items, dealt by get_worker_info."""
    yield from part(10)


def endless(start: int = 0) -> Iterator[int]:
    """A generator function as a target."""
    info = get_worker_info()
    assert info is not None
    number = start + info.id
    while True:
        yield number
        number += info.num_workers
