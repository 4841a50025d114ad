"""What the core is doing, as plain values for people, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.sequences import Cursor
from loaderd_server.core.slots import SlotState
from loaderd_server.core.streams import Stream
from loaderd_server.core.workers import Worker


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Times are summed over workers, in seconds."""

    name: str
    dataset: str
    mode: str
    #: What its opening waits for, "open", or "closed".
    phase: str
    #: Why it is closed, or "".
    failure: str
    slot_bytes: int
    arena_bytes: int
    slots_free: int
    slots_filling: int
    slots_ready: int
    slots_held: int
    slots_kept: int
    batches_made: int
    batches_remade: int
    batches_announced: int
    batches_failed: int
    batches_empty: int
    #: Of a queue: given to another as their trainer died, or lost with it.
    batches_redelivered: int
    batches_lost: int
    #: How often, and for how long, the foremost trainer waited as the window was full.
    stalls: int
    stalled_s: float
    samples_loaded: int
    samples_skipped: int
    load_s: float
    transform_s: float
    collate_s: float


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker. ``state``: "starting", "idle", "busy" or "ending"; ``task``: what it is at, or ""."""

    number: int
    dataset: str
    pid: int
    state: str
    tasks_done: int
    busy_s: float
    task: str


@dataclass(frozen=True, slots=True)
class CursorStatus:
    """One subscription. ``epoch`` and ``batch`` are -1 before it runs."""

    lease: int
    sub: int
    stream: str
    rank: int
    world_size: int
    state: str
    epoch: int
    batch: int
    credits_wanted: int
    credits_granted: int
    credits_outstanding: int
    waited_s: float
    #: It has left the window, or is served batches made again.
    is_behind: bool


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """Everything at one moment."""

    streams: tuple[StreamStatus, ...]
    workers: tuple[WorkerStatus, ...]
    cursors: tuple[CursorStatus, ...]


def status_of(streams: tuple[Stream, ...], dispatcher: Dispatcher, now: float) -> CoreStatus:
    """The status at ``now``."""
    return CoreStatus(
        tuple(_stream(stream) for stream in streams),
        tuple(_worker(worker, now) for worker in dispatcher.workers.values()),
        tuple(_cursor(cursor, now) for stream in streams for cursor in stream.cursors),
    )


def _stream(stream: Stream) -> StreamStatus:
    counts = stream.counts
    return StreamStatus(
        stream.name,
        stream.settings.dataset,
        stream.settings.mode.value,
        stream.phase.value,
        stream.failure.text if stream.failure else "",
        stream.slot_bytes,
        stream.arena_bytes,
        stream.slots_in(SlotState.FREE),
        stream.slots_in(SlotState.FILLING),
        stream.slots_in(SlotState.READY),
        stream.slots_in(SlotState.HELD),
        stream.slots_in(SlotState.KEPT),
        counts.made,
        counts.remade,
        counts.announced,
        counts.failed,
        counts.empty,
        counts.redelivered,
        counts.lost,
        counts.stalls,
        counts.stalled_s,
        counts.samples_loaded,
        counts.samples_skipped,
        counts.load_s,
        counts.transform_s,
        counts.collate_s,
    )


def _worker(worker: Worker, now: float) -> WorkerStatus:
    busy = bool(worker.hands)
    state = worker.state.value
    if worker.state.value in ("ready", "retiring"):
        state = "busy" if busy else "idle"
    return WorkerStatus(
        worker.number,
        worker.dataset,
        worker.pid,
        state,
        worker.tasks_done,
        worker.busy_s + (now - worker.since if busy else 0.0),
        str(worker.hands[0].job) if busy else "",
    )


def _cursor(cursor: Cursor, now: float) -> CursorStatus:
    waiting_s = 0.0 if cursor.waiting_since is None else now - cursor.waiting_since
    return CursorStatus(
        cursor.lease,
        cursor.sub,
        cursor.sequence.stream.name,
        cursor.sequence.rank,
        cursor.sequence.world_size,
        cursor.state.value,
        -1 if cursor.epoch is None else cursor.epoch.number,
        -1 if cursor.epoch is None else cursor.position,
        cursor.want,
        cursor.grant,
        cursor.outstanding,
        cursor.waited_s + waiting_s,
        cursor.is_behind,
    )
