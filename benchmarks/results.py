"""Medians, ratios with their spread, and how a benchmark's outcome is written down."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """How long to measure. ``repetitions`` are interleaved: a, b, c, a, b, c, ..."""

    repetitions: int = 5
    warm_s: float = 1.5
    window_s: float = 4.0
    messages: int = 2000
    attaches: int = 20
    photographs_per_class: int = 200


QUICK = Settings(
    repetitions=1, warm_s=0.3, window_s=0.5, messages=100, attaches=1, photographs_per_class=13
)


@dataclass(frozen=True)
class Spread:
    """A median and the least and greatest of the repetitions."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """Such as "0.97 (0.95 to 0.99)"."""
        return (
            f"{self.median:,.{digits}f} ({self.least:,.{digits}f} to {self.greatest:,.{digits}f})"
        )


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """The spread of quotients of the same repetition."""
    return Spread.of([a / b for a, b in zip(numerators, denominators, strict=True)])


@dataclass(frozen=True)
class Target:
    """A number the project promises, and what was measured."""

    what: str
    at_least: float
    measured: Spread

    @property
    def is_met(self) -> bool:
        """Whether the median reaches it."""
        return self.measured.median >= self.at_least

    def text(self) -> str:
        """A sentence with the verdict."""
        verdict = "reached" if self.is_met else "NOT reached"
        return (
            f"Target {verdict}: {self.what} is {self.measured.text()}, "
            f"to be at least {self.at_least}."
        )


@dataclass(frozen=True)
class Section:
    """One benchmark's outcome. ``raw``: every repetition's numbers by contender."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    raw: dict[str, list[list[float]]] = field(default_factory=dict)

    def markdown(self) -> str:
        """The section as a markdown table with its notes and targets."""
        lines = [f"## {self.title}", "", _row(self.headings), _row(["---"] * len(self.headings))]
        lines += [_row(row) for row in self.rows]
        lines += ["", *self.notes] if self.notes else []
        for target in self.targets:
            lines += ["", target.text()]
        return "\n".join(lines) + "\n"

    def document(self) -> dict[str, object]:
        """The section for results.json."""
        return asdict(self) | {"reached": [target.is_met for target in self.targets]}


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    return {
        "processor": _first_of(Path("/proc/cpuinfo"), "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": _first_of(Path("/proc/meminfo"), "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        **{name: version(name) for name in ("torch", "numpy", "pyzmq", "simplejpeg")},
    }


def _first_of(path: Path, key: str) -> str:
    for line in path.read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "unknown"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
