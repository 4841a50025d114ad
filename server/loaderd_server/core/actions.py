"""Everything the core can ask of the shell. Actions are carried out in the order they are given."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from loaderd_protocol.messages import (
    Announce,
    BatchEmpty,
    BatchFailed,
    EpochEnded,
    EpochStarted,
    Granted,
    Refused,
    Subscribed,
    Unsubscribed,
)
from loaderd_server.core.tasks import Indices, Task

Outgoing = (
    Subscribed | Refused | Granted | EpochStarted | Announce | BatchFailed | BatchEmpty
    | EpochEnded | Unsubscribed
)  # fmt: skip


class Severity(Enum):
    """How loud a line in the log is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to a trainer. Messages to one lease keep their order."""

    lease: int
    message: Outgoing


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork a worker of a dataset; answered by WorkerStarted or WorkerEnded. ``worker`` is new."""

    worker: int
    dataset: str


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker that has nothing in hand; answered by WorkerEnded."""

    worker: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a worker at once (it hangs); answered by WorkerEnded with the row it was at."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a task to a worker; tasks of one worker are answered in the order they were given."""

    worker: int
    task: Task


@dataclass(frozen=True, slots=True)
class MakeArena:
    """Make an arena of ``count`` slots of ``slot_bytes`` each (a multiple of the page size).

    Slot i of it lies at ``i * slot_bytes``. Answered by ArenaReady or ArenaRefused.
    """

    arena: int
    stream: str
    slot_bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class DropArena:
    """Give an arena's memory back: its stream was removed, no worker writes in it, no trainer reads it."""

    arena: int


@dataclass(frozen=True, slots=True)
class MakeCache:
    """Make a dataset's cache arena: ``size_bytes`` of addresses, and no memory yet (a sparse memfd).

    Its workers have it mapped before any task that names an offset in it.
    """

    dataset: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CommitCache:
    """Give this range of a cache arena memory, checked and faulted in; CacheCommitted or CacheRefused."""

    dataset: str
    offset: int
    size_bytes: int
    #: Why, for the log.
    reason: str


@dataclass(frozen=True, slots=True)
class PunchCache:
    """Give the memory of this range of a cache arena back; CachePunched tells when it is."""

    dataset: str
    offset: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class DropCache:
    """The dataset is gone, and nobody reads or writes its cache: its memory is given back."""

    dataset: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Where a worker is to write the samples that it offered with ``task``; answered by WorkerKept.

    ``rows`` are all rows that it offered; ``memory`` and ``disk`` (None: no disk tier) say where each
    goes, NOWHERE for let go. No task: it takes no place in the worker's hands.
    """

    worker: int
    task: int
    rows: Indices
    memory: Indices
    disk: Indices | None


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The stream's slots exist: trainers are served from now on. Said once a stream."""

    stream: str
    slot_bytes: int
    slots: int


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream cannot be served (no dataset, no order, no memory); ``text`` says why."""

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send TimerFired at this time; a later WakeAt replaces it."""

    at: float


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log."""

    severity: Severity
    text: str


Action = (
    Tell | StartWorker | StopWorker | KillWorker | Assign | MakeArena | DropArena
    | MakeCache | CommitCache | PunchCache | DropCache | Keep | StreamOpened | StreamClosed | WakeAt | Log
)  # fmt: skip
