"""From the configuration to what the core and the zygotes are built from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from loaderd_server import mixtures
from loaderd_server.config import (
    Config,
    MixtureConfig,
    SamplerConfig,
    StreamConfig,
    TargetConfig,
)
from loaderd_server.core.settings import (
    CoreSettings,
    ErrorPolicy,
    Lag,
    Mode,
    OnError,
    Sharing,
    StreamSettings,
    WorkerSettings,
)
from loaderd_server.workers.plan import (
    DatasetPlan,
    ProcessPlan,
    SamplerPlan,
    StreamPlan,
    Target,
)

#: Arguments longer than this go into states as a digest.
_SHORT_ARGS = 80


def core_settings(config: Config) -> CoreSettings:
    """What the core must know."""
    workers = config.workers
    return CoreSettings(
        workers=WorkerSettings(
            count=workers.count,
            timeout_s=workers.timeout_s,
            idle_s=workers.idle_s,
            max_rss_bytes=workers.max_rss,
            depth=workers.depth,
        ),
        streams=tuple(_settings(config, name, stream) for name, stream in config.streams.items()),
        memory_bytes=config.memory,
    )


def dataset_plans(config: Config, directory: Path) -> tuple[DatasetPlan, ...]:
    """What each zygote must know. Paths in ``python_path`` count from ``directory``."""
    python_path = tuple(str((directory / path).resolve()) for path in config.python_path)
    workers = config.workers
    process = ProcessPlan(
        workers.start_method, workers.affinity, workers.niceness, workers.worker_init
    )
    return tuple(
        DatasetPlan(name, Target(dataset.target, dataset.args), python_path, streams, process)
        for name, (dataset, streams) in _by_dataset(config).items()
    )


def _by_dataset(config: Config) -> dict[str, tuple[TargetConfig, tuple[StreamPlan, ...]]]:
    found: dict[str, tuple[TargetConfig, tuple[StreamPlan, ...]]] = {}
    for name, stream in config.streams.items():
        dataset = dataset_name(name, stream)
        target = _target(config, stream)
        _same, streams = found.get(dataset, (target, ()))
        found[dataset] = (target, (*streams, _plan(name, stream)))
    return found


def datasets_of(config: Config) -> dict[str, TargetConfig]:
    """The datasets that streams draw from."""
    return {name: target for name, (target, _streams) in _by_dataset(config).items()}


def dataset_name(stream_name: str, stream: StreamConfig) -> str:
    """A dataset written within a stream goes by the stream's name."""
    return stream.dataset if isinstance(stream.dataset, str) else f"streams.{stream_name}"


def _target(config: Config, stream: StreamConfig) -> TargetConfig:
    if isinstance(stream.dataset, MixtureConfig):
        return mixtures.target(config, stream.dataset, has_collate=stream.collate != "default")
    return config.datasets[stream.dataset] if isinstance(stream.dataset, str) else stream.dataset


def _settings(config: Config, name: str, stream: StreamConfig) -> StreamSettings:
    on_error = stream.on_error
    return StreamSettings(
        name=name,
        dataset=dataset_name(name, stream),
        mode=Mode(stream.mode),
        seed=stream.seed,
        batch_size=stream.batch_size,
        drop_last=stream.drop_last,
        on_error=OnError(ErrorPolicy(on_error.policy), on_error.max_count, on_error.max_rate),
        slot_bytes=stream.slot_bytes if isinstance(stream.slot_bytes, int) else None,
        slots=stream.slots if isinstance(stream.slots, int) else None,
        sharing=_sharing(stream),
        shards=stream.shards,
        uncuttable="" if stream.collate == "default" else "its collate is the user's own",
        order=_order(config, stream),
    )


def _sharing(stream: StreamConfig) -> Sharing:
    awaited = stream.await_trainers
    return Sharing(
        lag=Lag(stream.lag),
        patience_s=stream.patience_s,
        window=stream.window if isinstance(stream.window, int) else None,
        await_count=awaited.count if awaited else 0,
        await_timeout_s=awaited.timeout_s if awaited else None,
        redeliver=stream.redeliver,
    )


def _order(config: Config, stream: StreamConfig) -> tuple[tuple[str, str], ...]:
    """What fixes a stream's orders, but for its seed and the length of its dataset.

    Targets go by name, arguments by a digest: states of trainers carry this.
    """
    target = _target(config, stream)
    if isinstance(stream.dataset, MixtureConfig):
        facts = mixtures.facts(stream.dataset, str(stream.sampler))
        facts["sources"] = _digest(target.args["sources"])
    else:
        facts = {"dataset": target.target, "dataset_args": _digest(target.args)}
        facts |= _order_of_sampler(stream.sampler)
    if stream.mode == "shard":
        facts["drop_last"] = str(stream.drop_last).lower()
    return tuple(facts.items())


def _order_of_sampler(sampler: str | SamplerConfig) -> dict[str, str]:
    if isinstance(sampler, str):
        return {"sampler": sampler}
    plan = _sampler(sampler)
    return {"sampler": plan.target or plan.kind, "sampler_args": _digest(plan.args)}


def _digest(args: Any) -> str:
    text = json.dumps(args, sort_keys=True, default=str)
    return text if len(text) <= _SHORT_ARGS else hashlib.blake2b(text.encode()).hexdigest()[:16]


def _plan(name: str, stream: StreamConfig) -> StreamPlan:
    return StreamPlan(
        name=name,
        mode=Mode(stream.mode),
        seed=stream.seed,
        batch_size=stream.batch_size,
        drop_last=stream.drop_last,
        sampler=_sampler_of(stream),
        transforms=tuple(_transform(item) for item in stream.transform),
        collate=_collate(stream),
        on_error=ErrorPolicy(stream.on_error.policy),
    )


def _sampler_of(stream: StreamConfig) -> SamplerPlan:
    if isinstance(stream.dataset, MixtureConfig):
        return mixtures.sampler(stream.dataset, str(stream.sampler))
    return _sampler(stream.sampler)


def _sampler(sampler: str | SamplerConfig) -> SamplerPlan:
    if isinstance(sampler, str):
        return SamplerPlan(sampler)
    if sampler.weighted is not None:
        return SamplerPlan("weighted", sampler.weighted.model_dump())
    if sampler.subset is not None:
        return SamplerPlan("subset", sampler.subset.model_dump())
    if sampler.target is not None:
        return SamplerPlan("target", sampler.args, sampler.target)
    return SamplerPlan("batch_target", sampler.args, sampler.batch_target)


def _transform(item: str | dict[str, Any]) -> Target:
    if isinstance(item, str):
        return Target(item)
    if "target" in item:
        return Target(item["target"], item.get("args", {}))
    ((name, args),) = item.items()
    return Target(name, args or {})


def _collate(stream: StreamConfig) -> Target | None:
    collate = stream.collate
    if isinstance(collate, TargetConfig):
        return Target(collate.target, collate.args)
    return None if collate == "default" else Target(collate)
