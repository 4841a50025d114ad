"""A stream's mixture as what carries it out: the target of one dataset, a sampler, and facts for states."""

from __future__ import annotations

from typing import Any

from loaderd_server.config import Config, MixtureConfig, SourceConfig, TargetConfig
from loaderd_server.workers.plan import SamplerPlan

_TARGET = "loaderd_server.datasets.mixture:mixture"


def target(config: Config, mixture: MixtureConfig, *, has_collate: bool) -> TargetConfig:
    """The dataset that holds all sources. ``has_collate``: the stream has a collate of its own."""
    sources = [_source(config, source) for source in mixture.mixture]
    return TargetConfig(target=_TARGET, args={"sources": sources, "has_collate": has_collate})


def sampler(mixture: MixtureConfig, walk: str) -> SamplerPlan:
    """How its orders are drawn. ``walk``: the stream's sampler, for sources without their own."""
    args = {
        "weights": [source.weight for source in mixture.mixture],
        "samplers": [source.sampler or walk for source in mixture.mixture],
        "exhausted": mixture.exhausted,
        "samples": mixture.samples,
    }
    return SamplerPlan("mixture", args)


def facts(mixture: MixtureConfig, walk: str) -> dict[str, str]:
    """What of the mixture fixes its orders, by names that people know."""
    samplers = [source.sampler or walk for source in mixture.mixture]
    found = {
        "dataset": f"mixture of {', '.join(map(_name, mixture.mixture))}",
        "weights": ", ".join(f"{source.weight:.12g}" for source in mixture.mixture),
        "sampler": samplers[0] if len(set(samplers)) == 1 else ", ".join(samplers),
        "exhausted": mixture.exhausted,
    }
    if mixture.samples is not None:
        found["epoch_samples"] = str(mixture.samples)
    return found


def _source(config: Config, source: SourceConfig) -> dict[str, Any]:
    dataset = source.dataset
    found = config.datasets[dataset] if isinstance(dataset, str) else dataset
    return {"name": _name(source), "target": found.target, "args": found.args}


def _name(source: SourceConfig) -> str:
    return source.dataset if isinstance(source.dataset, str) else source.dataset.target
