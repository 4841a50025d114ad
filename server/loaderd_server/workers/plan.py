"""What a zygote must know to build its dataset and to make batches of its streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loaderd_server.core.settings import ErrorPolicy, Mode

#: Arguments as they come from the configuration: what JSON can say.
Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A callable to import ("package.module:qualname") and the keyword arguments to give it."""

    target: str
    args: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplerPlan:
    """How an epoch's order is drawn.

    ``kind``: "sequential", "random", "weighted" (args: weights, num_samples, replacement),
    "subset" (args: indices), "mixture" (args: weights, samplers, exhausted, samples), "target" (a
    sampler of indices) or "batch_target" (a sampler of batches of indices). ``target`` is set for
    the last two.
    """

    kind: str
    args: Arguments = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The part of a stream that runs in workers."""

    name: str
    mode: Mode
    seed: int
    batch_size: int | None
    drop_last: bool
    sampler: SamplerPlan
    #: Each is built with its args, then called ``transform(sample, rng)``. A name without ":" is
    #: looked up in ``loaderd_server.transforms``.
    transforms: tuple[Target, ...]
    #: None for torch's default rules, written straight into the slot.
    collate: Target | None
    on_error: ErrorPolicy


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """How zygotes and workers run."""

    start_method: str = "fork"  # "fork" | "spawn"
    affinity: str = "none"  # "none" | "cores" | "numa"
    niceness: int = 0
    #: Called as ``worker_init(worker)`` in each worker before its first task, with its number.
    worker_init: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetPlan:
    """One dataset, with the streams that draw from it."""

    name: str
    dataset: Target
    #: Absolute directories put in front of ``sys.path``.
    python_path: tuple[str, ...]
    streams: tuple[StreamPlan, ...]
    process: ProcessPlan
