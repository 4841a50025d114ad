"""Datasets and collates that misbehave in the ways of the field's bug reports."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch


class Counting:
    """``dataset[i]`` is a row of i; every build and every load leaves a line in a file."""

    def __init__(self, length: int = 40, width: int = 8, journal: str | None = None) -> None:
        self.length, self.width, self.journal = length, width, journal
        self._note("init")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self._note(f"load {index}")
        return torch.full((self.width,), float(index))

    def _note(self, line: str) -> None:
        if self.journal:
            with open(self.journal, "a") as file:
                file.write(f"{line}\n")


class SlowToBuild(Counting):
    """Takes two seconds to build."""

    def __init__(self, length: int = 40) -> None:
        time.sleep(2)
        super().__init__(length)


class Ragged:
    """Nine items of mixed kinds; the last tensor has a varying number of rows, 0 among them."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str, int, torch.Tensor]:
        return torch.tensor(index), f"name{index}", index, torch.ones(index % 3, 4)


def keep_lists(samples: list[Any]) -> list[list[Any]]:
    """A collate that keeps each field as a list."""
    return [list(field) for field in zip(*samples, strict=True)]


class Killing:
    """Item ``at`` ends its process: ``how`` is "kill" or "exit"; only the first time if ``once``."""

    def __init__(
        self, at: int, how: str = "kill", length: int = 16, once: str | None = None
    ) -> None:
        self.at, self.how, self.length, self.once = at, how, length, once

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.at and self._is_time():
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(0)
        return index

    def _is_time(self) -> bool:
        if self.once is None:
            return True
        if Path(self.once).exists():
            return False
        Path(self.once).touch()
        return True


class TwoArguments(Exception):
    """Cannot be rebuilt from one text."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}-{second}")


class KeywordOnly(Exception):
    """Cannot be rebuilt from one text."""

    def __init__(self, *, word: str) -> None:
        super().__init__(word)


class RaisingConstructor(Exception):
    """Its constructor raises unless given a known key."""

    def __init__(self, key: str) -> None:
        super().__init__({"known": "well known"}[key])


class Fundamental(BaseException):
    """Not an Exception."""


FAULTS: dict[str, Any] = {
    "two": lambda: TwoArguments("left", "right"),
    "keyword": lambda: KeywordOnly(word="spoken"),
    "constructor": lambda: RaisingConstructor("known"),
    "base": lambda: Fundamental("deep"),
    "stop": lambda: StopIteration("early"),
    "value": lambda: ValueError("plain"),
    "key": lambda: KeyError("lost"),
    "exit": lambda: SystemExit(3),
}


class Raising:
    """Item 3 of 8 raises the named fault."""

    def __init__(self, fault: str, length: int = 8, at: int = 3) -> None:
        self.fault, self.length, self.at = fault, length, at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            raise FAULTS[self.fault]()
        return index


class Shapes:
    """Item 2 has another shape than the rest."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.zeros(3, 5 if index == 2 else 4)}


class Indices:
    """``dataset[i]`` is i: for collates that make everything themselves."""

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Point(NamedTuple):
    """A namedtuple that trainers may or may not have imported."""

    x: torch.Tensor
    y: torch.Tensor


Loose = namedtuple("Loose", ["a", "b"])


@dataclasses.dataclass
class Pair:
    """A dataclass that travels."""

    left: torch.Tensor
    right: str


def leaves() -> dict[str, Any]:
    """Every dense leaf that must keep its values, dtype, shape and strides."""
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    return {
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "transposed": base[0, 0].t(),
        "expanded": torch.arange(4).expand(3, 4),
        "bool": torch.tensor([True, False]),
        "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
        "bfloat16": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
        "float8": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
        "complex64": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(7),
        "conj": torch.tensor([1 + 2j]).conj(),
        "conj_imag": torch.tensor([1 + 2j]).conj().imag,
        "point": Point(torch.ones(2), torch.zeros(1, dtype=torch.int8)),
        "pair": Pair(torch.ones(1), "right"),
        "array": np.arange(6, dtype=">i2").reshape(2, 3),
        "strings": ["a", "b\ud800"],
    }


def collate_leaves(_samples: list[int]) -> dict[str, Any]:
    """A batch of all leaves."""
    return leaves()


def traps() -> dict[str, Any]:
    """What msgpack alone would change."""
    return {
        "tuple": (1, (2, 3)),
        "list": [1, [2, 3]],
        "int_keys": {1: "one", 2: "two"},
        "tuple_keys": {(1, 2): "pair"},
        "numpy": np.float32(1.5),
        "numpy_int": np.int64(-7),
        "big": 2**100,
        "negative": -(2**64),
        "surrogate": "\ud83d",
        "bytes": b"\xff\x00",
        "none": None,
    }


def collate_traps(_samples: list[int]) -> dict[str, Any]:
    """A batch without a tensor."""
    return traps()


class Opaque:
    """An object that cannot travel."""


def collate_opaque(_samples: list[int]) -> dict[str, Any]:
    """A batch that cannot travel."""
    return {"fine": torch.ones(1), "deep": [{"odd": Opaque()}]}


BIG = torch.arange(16 * 1024 * 1024, dtype=torch.float32)


def collate_slice(_samples: list[int]) -> torch.Tensor:
    """Ten elements of 64 MiB."""
    return BIG[:10]


class Draws:
    """``dataset[i]`` draws from the three global generators."""

    def __init__(self, length: int = 12) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


def jitter(sample: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """A random transform that uses only its generator."""
    return torch.cat([torch.as_tensor(sample).reshape(-1).double(), torch.tensor([rng.random()])])


class DrawTwice:
    """A sampler that draws index 2 twice in a row, then the others."""

    def __init__(self, dataset: Any, *, seed: int, epoch: int) -> None:
        self.length = len(dataset)

    def __iter__(self) -> Any:
        yield from [2, 2, 0, 1, 2, 3]


class Large:
    """Rows of a size chosen by the index: item 8 makes its batch a hundred times larger."""

    def __init__(self, length: int = 16, small: int = 1000, large: int = 100_000) -> None:
        self.length, self.small, self.large = length, small, large

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.large if index == 8 else self.small,), float(index))


class Sleeping:
    """Item ``at`` sleeps for ``sleep_s`` seconds."""

    def __init__(self, at: int, sleep_s: float, length: int = 16) -> None:
        self.at, self.sleep_s, self.length = at, sleep_s, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            time.sleep(self.sleep_s)
        return index


class Failing(Counting):
    """Rows of their index; the items ``at`` cannot be loaded."""

    def __init__(self, length: int, at: Sequence[int] = (3, 20, 21, 50)) -> None:
        super().__init__(length, width=4)
        self.at = at

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.at:
            raise ValueError(f"item {index} is bad")
        return super().__getitem__(index)
