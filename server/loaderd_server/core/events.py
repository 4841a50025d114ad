"""Everything that can happen to the core. The shell makes these; the simulation makes them too."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd_protocol.errors import Failure
from loaderd_protocol.messages import Done, Leave, Release, Start, Subscribe, Unsubscribe
from loaderd_server.core.settings import CacheSettings, StreamSettings
from loaderd_server.core.tasks import Indices, Result


@dataclass(frozen=True, slots=True)
class LeaseBegan:
    """A trainer attached and said Hello: its messages can be answered from now on."""

    lease: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """The trainer is gone (its process or its socket ended): everything it held is free."""

    lease: int


@dataclass(frozen=True, slots=True)
class TrainerSaid:
    """A trainer's message, already decoded. The core trusts its types, never its contents."""

    lease: int
    message: Subscribe | Start | Unsubscribe | Release | Done | Leave


@dataclass(frozen=True, slots=True)
class DatasetReady:
    """A zygote has built its dataset; workers can be forked from it.

    ``length`` is None for a dataset without ``__len__``. ``is_iterable``: its samples come by
    iteration (IterateTask), never by index.
    """

    dataset: str
    length: int | None
    is_iterable: bool = False
    #: Workers are forked while other threads run: a lock that one of those holds stays locked in them.
    forks_locks: bool = False
    #: It makes its batches by rules of its own, so that nobody else can cut them.
    own_collate: bool = False
    #: What it says of being cached; None where it says nothing.
    cacheable: bool | None = None
    #: Why its samples cannot be cached whatever it says; "" where they can.
    uncacheable: str = ""
    #: It takes hints of what is coming (``will_need``).
    reads_ahead: bool = False


@dataclass(frozen=True, slots=True)
class DatasetFailed:
    """A zygote could not build its dataset: its streams cannot be served."""

    dataset: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class DatasetLost:
    """A zygote died and with it, without further news, every worker of its dataset.

    The shell starts it again by itself and says DatasetReady or DatasetFailed when it is known.
    """

    dataset: str
    text: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The worker asked for by StartWorker is there and can be given tasks."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker is gone: as asked, or by itself.

    ``how`` is a phrase such as "was killed by signal 9 (SIGKILL)" or "exited with code 3".
    ``row`` is the row of its task in progress that it had begun last, or None.
    """

    worker: int
    how: str
    row: int | None


@dataclass(frozen=True, slots=True)
class WorkerAnswered:
    """A worker finished a task. ``rss_growth_bytes``: its anonymous memory since its fork."""

    worker: int
    result: Result
    rss_growth_bytes: int


@dataclass(frozen=True, slots=True)
class ArenaReady:
    """The arena asked for by MakeArena exists and workers and trainers were told of it."""

    arena: int


@dataclass(frozen=True, slots=True)
class ArenaRefused:
    """There is no memory for the arena; ``text`` says needed, available and which setting."""

    arena: int
    text: str


@dataclass(frozen=True, slots=True)
class CacheCommitted:
    """The range asked for by CommitCache has memory."""

    dataset: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CacheRefused:
    """There is no memory for it; ``text`` says needed, available and which setting."""

    dataset: str
    offset: int
    size_bytes: int
    text: str


@dataclass(frozen=True, slots=True)
class CachePunched:
    """The range asked for by PunchCache has no memory any more."""

    dataset: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerKept:
    """A worker has written what Keep of ``task`` said.

    ``failed`` and ``disk_failed``: rows that it could not write to memory (it had let them go), and to
    disk; ``text`` says why, for the log.
    """

    worker: int
    task: int
    failed: tuple[int, ...] = ()
    disk_failed: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """How much memory the machine has left, looked at every second or so while a cache can change.

    ``available_bytes``: what may still be taken, after the reserve. ``pressure``: share of the time (0 to
    1) in which some task waited for memory, over the last 10 s (PSI); 0 where the kernel does not say.
    """

    available_bytes: int
    pressure: float
    #: What the least of the limits is, in words.
    by: str


@dataclass(frozen=True, slots=True)
class DiskTierReady:
    """What a dataset's disk tier has from before: one row each, ``sizes`` in bytes of the record."""

    dataset: str
    indices: Indices
    offsets: Indices
    sizes: Indices


@dataclass(frozen=True, slots=True)
class DiskTierLost:
    """A dataset's disk tier cannot be used; the shell has told why."""

    dataset: str


@dataclass(frozen=True, slots=True)
class StreamsChanged:
    """The configuration was read again.

    ``removed`` streams end; one that is in ``added`` too has changed. The shell has stopped the
    processes of ``datasets_gone`` (their workers' ends are still to come, as WorkerEnded), and builds
    the datasets that are new or, named in ``datasets_gone`` too, changed.
    """

    removed: tuple[str, ...]
    added: tuple[StreamSettings, ...]
    datasets_gone: tuple[str, ...] = ()
    #: Caches of datasets that are new.
    caches: tuple[CacheSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A deadline that the core asked for by WakeAt has passed."""


Event = (
    LeaseBegan | LeaseEnded | TrainerSaid | DatasetReady | DatasetFailed | DatasetLost
    | WorkerStarted | WorkerEnded | WorkerAnswered | ArenaReady | ArenaRefused | StreamsChanged
    | CacheCommitted | CacheRefused | CachePunched | WorkerKept | MemoryRead | DiskTierReady
    | DiskTierLost | TimerFired
)  # fmt: skip
