"""What the core must know of the configuration, as plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Mode(Enum):
    """How trainers share a stream."""

    #: One sequence, read by each trainer at its own pace.
    BROADCAST = "broadcast"
    #: One sequence a rank.
    SHARD = "shard"
    #: One sequence, each batch of it for one trainer.
    QUEUE = "queue"
    #: One sequence a seed.
    INDEPENDENT = "independent"


class Lag(Enum):
    """What happens when trainers of one sequence drift apart."""

    #: Nobody waits; who is behind the window is served the same batches made again.
    FOLLOW = "follow"
    #: The foremost waits while the window is full, for a time.
    WAIT = "wait"


class ErrorPolicy(Enum):
    """What becomes of a sample that fails."""

    RAISE = "raise"
    SKIP = "skip"
    SUBSTITUTE = "substitute"


@dataclass(frozen=True, slots=True)
class OnError:
    """The policy and its caps, counted per sequence and epoch.

    More than ``max_count`` failed samples, or a share above ``max_rate`` (0 to 1) of the samples
    made so far, looked at from the 100th sample on, turns the batch at hand into TooManyFailures.
    """

    policy: ErrorPolicy = ErrorPolicy.RAISE
    max_count: int | None = None
    max_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """How trainers of a stream get along. Times in seconds."""

    lag: Lag = Lag.FOLLOW
    #: How long the foremost waits for the last (``wait``).
    patience_s: float = 30.0
    #: Batches between the last and the foremost; None for half of the slots.
    window: int | None = None
    #: Nothing is made before so many trainers have started, or the time is over.
    await_count: int = 0
    await_timeout_s: float | None = None
    #: Whether a queue's batch goes to another when its trainer dies before it is done.
    redeliver: bool = True


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """One stream. ``slot_bytes`` and ``slots`` are None for auto."""

    name: str
    dataset: str
    mode: Mode
    seed: int
    #: Rows of a batch; None where a batch sampler cuts the order.
    batch_size: int | None
    drop_last: bool
    on_error: OnError = OnError()
    slot_bytes: int | None = None
    slots: int | None = None
    sharing: Sharing = Sharing()
    #: Iterators that an iterable dataset is split into.
    shards: int = 1
    #: Why its batches cannot be cut to another size; "" where they can.
    uncuttable: str = ""
    #: What fixes its orders, by names that people know, as (name, value).
    order: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Bounds on workers. ``timeout_s`` and ``idle_s`` are None for never."""

    count: int
    timeout_s: float | None = 60.0
    idle_s: float | None = 300.0
    #: Growth of a worker's anonymous memory since its fork, above which it is replaced.
    max_rss_bytes: int | None = None
    #: Tasks a worker may have in hand: one in progress and the rest waiting in its socket.
    depth: int = 2


class Policy(Enum):
    """Which samples a full cache keeps."""

    #: Those that are used again soonest, by the orders of all trainers.
    CLAIRVOYANT = "clairvoyant"
    #: Those that came first.
    PIN = "pin"
    #: Those that were used last.
    LRU = "lru"
    #: Those that were used most often.
    LFU = "lfu"


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The sample cache of a dataset. A dataset without has none."""

    dataset: str
    policy: Policy
    #: Memory that it always has, and the most that it may grow to.
    least_bytes: int
    most_bytes: int
    #: The configuration asks for it by name: a dataset that cannot be cached is then an error.
    is_demanded: bool = True
    #: Filled in the background before trainers ask.
    warms: bool = False
    #: Bytes of its disk tier; 0 for none.
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Everything the core is built from."""

    workers: WorkerSettings
    streams: tuple[StreamSettings, ...]
    #: For texts of errors and for sizing slots; the shell decides whether an arena may be made.
    memory_bytes: int
    caches: tuple[CacheSettings, ...] = ()

    @property
    def slots_bytes(self) -> int:
        """What of the memory slots may take: what caches leave of it, and no less than a quarter."""
        caches_bytes = sum(cache.most_bytes for cache in self.caches)
        return max(self.memory_bytes - caches_bytes, self.memory_bytes // 4)
