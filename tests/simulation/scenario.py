"""What a seed stands for: settings, datasets with bad samples, and how trainers will behave."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from loaderd_protocol.messages import Dealt
from loaderd_server.core.settings import (
    CacheSettings,
    CoreSettings,
    ErrorPolicy,
    Lag,
    Mode,
    OnError,
    Policy,
    Sharing,
    StreamSettings,
    WorkerSettings,
)

PAGE_BYTES = 4096
#: What a usual batch needs.
BATCH_BYTES = 5000
#: The slot that is made for it, with headroom.
_SLOT_BYTES = 3 * PAGE_BYTES


@dataclass(frozen=True)
class DatasetScript:
    """A dataset: its length, and what its samples do to those who load them."""

    name: str
    length: int
    #: Indices that raise, that end the worker, that never return.
    bad: frozenset[int]
    deadly: frozenset[int]
    hanging: frozenset[int]
    #: How often its zygote dies.
    losses: int
    #: Whether it cannot be built again after the last of these.
    is_lost_for_good: bool
    #: How many workers die before they start, and after how many that did start.
    stillborn: int
    born_before: int
    #: Samples come by iteration; none of them is ill.
    is_iterable: bool
    #: What it says of being cached, and whether a sample is another each time.
    cacheable: bool | None = True
    is_random: bool = False
    #: Bytes of a record at least and at most, and whether a sample's own changes now and then.
    record_bytes: tuple[int, int] = (64, 64)
    sizes_change: bool = False

    def size_of(self, sample: int) -> int:
        """Bytes of a sample's record."""
        least, most = self.record_bytes
        return least + random.Random(sample).randrange(most - least + 1)


@dataclass(frozen=True)
class TrainerScript:
    """A trainer: what it asks for and what befalls it. Times in seconds."""

    stream: str
    rank: int
    world_size: int
    prefetch: int
    attach_at: float
    #: Where it begins, and how many epochs it runs.
    epoch: int
    batch_share: float
    epochs: int
    pace_s: float
    #: Views it keeps after its work on them.
    keep: int
    #: Chance, a batch, to start anew somewhere.
    restlessness: float
    #: Chance, a batch, to say something that makes no sense.
    madness: float
    #: When it is stopped, and for how long (infinite: for ever).
    stop_at: float
    stop_s: float
    crash_at: float
    #: Sends Start without waiting for Subscribed.
    is_hasty: bool
    #: Of its own order; -1 for the stream's.
    seed: int
    #: Its own batch size and drop_last; 0 and -1 for the stream's.
    batch_size: int
    drop_last: int
    #: Joins where the foremost is.
    joins_live: bool
    #: Comes back when the daemon has died.
    reconnects: bool
    #: What of the first epoch went to other world sizes before.
    dealt: tuple[Dealt, ...]


@dataclass(frozen=True)
class Scenario:
    """Everything that is decided before the first event."""

    seed: int
    settings: CoreSettings
    datasets: tuple[DatasetScript, ...]
    trainers: tuple[TrainerScript, ...]
    #: Streams whose order comes from a batch sampler, and those that draw indices twice.
    batch_sampled: frozenset[str]
    redrawn: frozenset[str]
    #: Chances of a batch: to need a large slot, to meet an accident of its worker.
    large_share: float
    accident_share: float
    refusal_share: float
    #: Bytes the shell gives out for arenas.
    budget_bytes: int
    #: When the daemon is killed, and started again at once.
    restarts: tuple[float, ...]
    draws: random.Random = field(compare=False)


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed; always the same."""
    draws = random.Random(seed)
    workers = draws.choice((1, 1, 2, 2, 3, 4, 8))
    timeout_s = draws.choice((None, 2.0, 2.0))
    datasets = tuple(
        _dataset(draws, f"d{i}", timeout_s is not None) for i in range(draws.choice((1, 1, 2)))
    )
    streams = tuple(
        _stream(draws, f"s{i}", draws.choice(datasets), workers)
        for i in range(draws.choice((1, 1, 2, 3)))
    )
    iterable = frozenset(d.name for d in datasets if d.is_iterable)
    batch_sampled = frozenset(s.name for s in streams if s.batch_size is None)
    slots_bytes = _SLOT_BYTES * draws.choice((workers + 2, workers + 6, 40, 200)) * len(streams)
    settings = CoreSettings(
        WorkerSettings(
            workers,
            timeout_s,
            draws.choice((None, 1.0, 30.0)),
            draws.choice((None, None, 1000)),
            draws.choice((1, 2, 2, 3, 5)),
        ),
        streams,
        slots_bytes,
    )
    settings, datasets = _with_caches(random.Random(f"caches {seed}"), settings, datasets)
    return Scenario(
        seed,
        settings,
        datasets,
        tuple(_trainer(draws, streams, iterable) for _ in range(draws.randint(1, 6))),
        batch_sampled,
        frozenset(s.name for s in streams if draws.random() < 0.3),
        draws.choice((0.0, 0.0, 0.1, 0.8)),
        draws.choice((0.0, 0.05, 0.3)),
        draws.choice((0.0, 0.0, 0.0, 0.3)),
        slots_bytes * draws.choice((1, 2, 4)) if draws.random() < 0.3 else 1 << 30,
        tuple(draws.uniform(0.3, 4) for _ in range(draws.choice((0, 0, 0, 1, 2)))),
        draws,
    )


def _dataset(draws: random.Random, name: str, may_hang: bool) -> DatasetScript:
    length = draws.choice((1, 7, 16, 23, 40, 60, 90)) if draws.random() < 0.97 else 0
    kinds: list[set[int]] = [set(), set(), set()]
    is_iterable = draws.random() < 0.2
    ill = 0.0 if is_iterable else draws.choice((0.0, 0.0, 0.05, 0.2))
    if draws.random() < 0.02 and not is_iterable:
        ill = 1.0
    for index in range(length):
        if draws.random() < ill:
            kinds[draws.choice((0, 0, 1, 2) if may_hang else (0, 0, 1))].add(index)
    return DatasetScript(
        name,
        length,
        frozenset(kinds[0]),
        frozenset(kinds[1]),
        frozenset(kinds[2]),
        draws.choice((0, 0, 0, 1, 2)),
        draws.random() < 0.1,
        draws.choice((0, 0, 0, 0, 0, 2, 7)),
        draws.choice((0, 1, 3, 3)),
        is_iterable,
    )


def _stream(
    draws: random.Random, name: str, dataset: DatasetScript, workers: int
) -> StreamSettings:
    policy = draws.choice(tuple(ErrorPolicy))
    mode, batch_size = draws.choice(tuple(Mode)), draws.choice((None, 1, 2, 4, 4, 8))
    if dataset.is_iterable:
        policy, mode, batch_size = ErrorPolicy.RAISE, Mode.BROADCAST, batch_size or 3
    capped = policy is not ErrorPolicy.RAISE and draws.random() < 0.2
    return StreamSettings(
        name,
        dataset.name,
        mode,
        draws.randrange(1000),
        batch_size,
        draws.random() < 0.5,
        OnError(policy, draws.choice((1, 3)) if capped else None),
        draws.choice((None, None, 2 * PAGE_BYTES)),
        draws.choice((None, None, workers + 2, workers + 4, workers + 30)),
        _sharing(draws),
        draws.choice((1, 1, 2, 3)),
    )


def _with_caches(
    draws: random.Random, settings: CoreSettings, datasets: tuple[DatasetScript, ...]
) -> tuple[CoreSettings, tuple[DatasetScript, ...]]:
    """Caches for some of the datasets, with memory of their own. The rest of a scenario stays."""
    caches, scripts = [], []
    for script in datasets:
        least = draws.choice((64, 2000, 20_000))
        script = replace(
            script,
            cacheable=draws.choice((True, True, True, None, False)),
            is_random=draws.random() < 0.05,
            record_bytes=(least, least * draws.choice((1, 1, 2, 40))),
            sizes_change=draws.random() < 0.2,
        )
        scripts.append(script)
        if draws.random() < 0.7:
            caches.append(_cache(draws, script))
    memory = settings.memory_bytes + sum(cache.most_bytes for cache in caches)
    changed = replace(settings, memory_bytes=memory, caches=tuple(caches))
    return changed, tuple(scripts)


def _cache(draws: random.Random, script: DatasetScript) -> CacheSettings:
    """From nearly nothing to more than all of it."""
    share = draws.choice((0.05, 0.2, 0.5, 2.0))
    most = max(1, int(share * script.length * sum(script.record_bytes) / 2))
    least = draws.choice((0, 0, most // 2, most))
    demanded, warms = draws.random() < 0.2, draws.random() < 0.3
    return CacheSettings(script.name, draws.choice(tuple(Policy)), least, most, demanded, warms)


def _sharing(draws: random.Random) -> Sharing:
    return Sharing(
        draws.choice((Lag.FOLLOW, Lag.FOLLOW, Lag.WAIT)),
        draws.choice((0.5, 4.0)),
        draws.choice((None, 1, 3, 8)),
        draws.choice((0, 0, 0, 2, 5)),
        draws.choice((0.5, 3.0)),
        draws.random() < 0.8,
    )


def _trainer(
    draws: random.Random, streams: tuple[StreamSettings, ...], iterable: frozenset[str]
) -> TrainerScript:
    world_size = draws.choice((1, 2, 3))
    fate = draws.random()
    stream = draws.choice(streams)
    can_cut = stream.batch_size is not None and stream.mode is not Mode.QUEUE
    can_cut = can_cut and stream.dataset not in iterable
    cuts = can_cut and draws.random() < 0.4
    return TrainerScript(
        stream.name,
        draws.randrange(world_size),
        world_size,
        draws.choice((0, 1, 2, 2, 5)),
        draws.choice((0.0, 0.0, draws.uniform(0, 3), draws.uniform(0, 8))),
        draws.choice((0, 0, 0, 2)),
        draws.choice((0.0, 0.0, draws.random())),
        draws.choice((1, 2, 3, 4)),
        draws.choice((0.0, 0.01, 0.1)),
        draws.choice((0, 0, 1, 3, 20)),
        draws.choice((0.0, 0.0, 0.05, 0.3)),
        draws.choice((0.0, 0.0, 0.1)),
        draws.uniform(0, 2) if 0.7 < fate <= 0.85 else math.inf,
        draws.choice((5.0, math.inf, math.inf)),
        draws.uniform(0, 2) if fate > 0.85 else math.inf,
        draws.random() < 0.5,
        draws.choice((-1, 3, 4)) if stream.mode is Mode.INDEPENDENT else -1,
        draws.choice((1, 3, 5, 16)) if cuts else 0,
        draws.choice((-1, 0, 1)) if cuts else -1,
        draws.random() < 0.3,
        draws.random() < 0.8,
        _dealt(draws) if stream.mode is Mode.SHARD and draws.random() < 0.4 else (),
    )


def _dealt(draws: random.Random) -> tuple[Dealt, ...]:
    worlds = [draws.choice((1, 2, 4)) for _ in range(draws.choice((1, 1, 2)))]
    return tuple(Dealt(w, tuple(draws.randint(0, 6) for _ in range(w))) for w in worlds)
