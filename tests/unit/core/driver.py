"""A core on a bench: the test plays the shell, and says only what it is about."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    BatchEmpty,
    BatchFailed,
    Done,
    Release,
    Start,
    Subscribe,
    Unsubscribe,
)
from loaderd_server.core.actions import (
    Action,
    Assign,
    Log,
    MakeArena,
    Outgoing,
    StartWorker,
    StopWorker,
    StreamClosed,
    StreamOpened,
    Tell,
    WakeAt,
)
from loaderd_server.core.engine import Core
from loaderd_server.core.events import (
    ArenaReady,
    ArenaRefused,
    DatasetReady,
    Event,
    LeaseBegan,
    LeaseEnded,
    TimerFired,
    TrainerSaid,
    WorkerAnswered,
    WorkerEnded,
    WorkerStarted,
)
from loaderd_server.core.settings import (
    CoreSettings,
    ErrorPolicy,
    Mode,
    OnError,
    Sharing,
    StreamSettings,
    WorkerSettings,
)
from loaderd_server.core.tasks import (
    BatchDone,
    BatchTask,
    IterateTask,
    IteratorOver,
    MeasureDone,
    MeasureIterateTask,
    MeasureTask,
    OrderDone,
    OrderTask,
    Result,
    Task,
)

M = TypeVar("M")


FOLLOW = Sharing()


def settings_of(
    *,
    workers: int = 1,
    depth: int = 1,
    slots: int | None = None,
    batch_size: int | None = 4,
    mode: Mode = Mode.BROADCAST,
    on_error: OnError | ErrorPolicy = ErrorPolicy.RAISE,
    drop_last: bool = False,
    streams: int = 1,
    timeout_s: float | None = 10.0,
    idle_s: float | None = None,
    max_rss_bytes: int | None = None,
    memory_bytes: int = 1 << 30,
    sharing: Sharing = FOLLOW,
    shards: int = 1,
) -> CoreSettings:
    """Streams "s0", "s1", ... of datasets "d0", "d1", ... with 8192-byte slots."""
    if isinstance(on_error, ErrorPolicy):
        on_error = OnError(on_error)
    return CoreSettings(
        WorkerSettings(workers, timeout_s, idle_s, max_rss_bytes, depth),
        tuple(
            StreamSettings(
                f"s{i}",
                f"d{i}",
                mode,
                0,
                batch_size,
                drop_last,
                on_error,
                8192,
                slots,
                sharing,
                shards,
            )
            for i in range(streams)
        ),
        memory_bytes,
    )


class Bench:
    """Carries actions out as far as no decision of the test is in them.

    Workers start, orders (0, 1, 2, ...) are made and arenas are ready at once; batches are made
    when the test says so, or at once with ``makes_batches``.
    """

    def __init__(self, settings: CoreSettings, *, length: int = 12, opens: bool = True) -> None:
        self.core = Core(settings)
        self.now = 0.0
        self.length = length
        self.makes_batches = False
        #: How many units each shard of an iterable dataset has.
        self.units = 1 << 30
        self.starts_workers = True
        #: What the shell says to MakeArena; a text refuses it.
        self.arena_refusal: Callable[[MakeArena], str | None] = lambda _: None
        self.order: Callable[[OrderTask], OrderDone] = self._count_up
        #: All actions so far, and the messages to each lease.
        self.actions: list[Action] = []
        self.told: defaultdict[int, list[Outgoing]] = defaultdict(list)
        #: Tasks that workers have in hand.
        self.hands: defaultdict[int, list[Task]] = defaultdict(list)
        self.wake_at: float | None = None
        #: How many announcements each lease has released with ``release``.
        self.released: Counter[int] = Counter()
        #: What the shell itself has still to say.
        self._answers: deque[Callable[[], object]] = deque()
        self._is_answering = False
        self._take(self.core.start(0.0))
        if opens:
            for stream in settings.streams:
                self.event(DatasetReady(stream.dataset, length))

    # --- events -----------------------------------------------------------------------------

    def event(self, event: Event) -> list[Action]:
        """One event, and all that follows of itself; returns the actions of this event alone."""
        actions = self.core.handle(event, self.now)
        self._take(actions)
        if not self._is_answering:
            self._is_answering = True
            while self._answers:
                self._answers.popleft()()
            self._is_answering = False
        return actions

    def trainer(
        self, lease: int, stream: str = "s0", *, prefetch: int = 2, start: int | None = 0
    ) -> None:
        """Attaches, subscribes as sub 0, and starts epoch 0 at this batch."""
        self.event(LeaseBegan(lease))
        self.say(lease, Subscribe(0, stream, 0, 1, prefetch, 0))
        if start is not None:
            self.say(lease, Start(0, 1, 0, start))

    def say(
        self, lease: int, message: Subscribe | Start | Unsubscribe | Release | Done
    ) -> list[Action]:
        """A trainer's message."""
        return self.event(TrainerSaid(lease, message))

    def release(self, lease: int, told: Announce | BatchFailed | BatchEmpty) -> None:
        """A trainer gives an announcement back."""
        self.released[lease] += 1
        if isinstance(told, Announce):
            self.say(lease, Release(told.sub, told.slot, told.generation))
        else:
            self.say(lease, Release(told.sub, NO_SLOT, told.batch))

    def leave(self, lease: int) -> None:
        """A trainer is gone."""
        self.event(LeaseEnded(lease))

    def answer(self, worker: int, result: Result, rss_bytes: int = 0) -> list[Action]:
        """A worker finishes the first task in its hands."""
        assert self.hands[worker].pop(0).task == result.task
        if self.hands[worker]:
            self._answers.append(lambda: self._work(worker))
        return self.event(WorkerAnswered(worker, result, rss_bytes))

    def make(self, worker: int | None = None, size_bytes: int = 5000) -> BatchTask:
        """A worker (the only busy one) makes the batch in its hands."""
        number, task = self.batch_task(worker)
        self.answer(number, done(task, size_bytes))
        return task

    def die(self, worker: int, row: int | None = None) -> list[Action]:
        """A worker is killed by what it does."""
        self.hands.pop(worker, None)
        return self.event(WorkerEnded(worker, "was killed by signal 9 (SIGKILL)", row))

    def pass_time(self, seconds: float) -> None:
        """Time goes on; timers that are due fire."""
        end = self.now + seconds
        while self.wake_at is not None and self.wake_at <= end:
            self.now, self.wake_at = max(self.now, self.wake_at), None
            self.event(TimerFired())
        self.now = end

    # --- questions --------------------------------------------------------------------------

    def batch_task(self, worker: int | None = None) -> tuple[int, BatchTask]:
        """The batch in a worker's hands, with its worker."""
        busy = [number for number, tasks in self.hands.items() if tasks]
        number = worker if worker is not None else busy[0]
        task = self.hands[number][0]
        assert isinstance(task, BatchTask), task
        return number, task

    def messages(self, lease: int, kind: type[M]) -> list[M]:
        """Messages of one kind to a lease, in order."""
        return [message for message in self.told[lease] if isinstance(message, kind)]

    def done_so_far(self, kind: type[M]) -> list[M]:
        """Actions of one kind, in order."""
        return [action for action in self.actions if isinstance(action, kind)]

    def closed(self) -> list[str]:
        """Why streams are closed."""
        return [action.text for action in self.done_so_far(StreamClosed)]

    def opened(self) -> list[StreamOpened]:
        """Streams that are open."""
        return self.done_so_far(StreamOpened)

    def logged(self) -> list[str]:
        """Lines of the log."""
        return [action.text for action in self.done_so_far(Log)]

    # --- the shell --------------------------------------------------------------------------

    def _take(self, actions: list[Action]) -> None:
        self.actions += actions
        for action in actions:
            if isinstance(action, Tell):
                self.told[action.lease].append(action.message)
            elif isinstance(action, StartWorker):
                if self.starts_workers:
                    self._later(WorkerStarted(action.worker, 1000 + action.worker))
            elif isinstance(action, Assign):
                self._assigned(action)
            elif isinstance(action, StopWorker):
                assert not self.hands[action.worker], "StopWorker with tasks in hand"
                self._later(WorkerEnded(action.worker, "exited with code 0", None))
            elif isinstance(action, MakeArena):
                refusal = self.arena_refusal(action)
                ready = ArenaReady(action.arena)
                self._later(ready if refusal is None else ArenaRefused(action.arena, refusal))
            elif isinstance(action, WakeAt):
                self.wake_at = action.at

    def _later(self, event: Event) -> None:
        self._answers.append(lambda: self.event(event))

    def _assigned(self, action: Assign) -> None:
        self.hands[action.worker].append(action.task)
        if len(self.hands[action.worker]) == 1:
            self._answers.append(lambda: self._work(action.worker))

    def _work(self, worker: int) -> None:
        """Does the task in progress, unless that is for the test to do."""
        task = self.hands[worker][0] if self.hands[worker] else None
        if isinstance(task, OrderTask):
            self.answer(worker, self.order(task))
        elif isinstance(task, IterateTask) and self.makes_batches:
            self.answer(worker, self.unit_done(task))
        elif isinstance(task, MeasureTask | MeasureIterateTask):
            self.answer(worker, MeasureDone(task.task, 5000))
        elif isinstance(task, BatchTask) and self.makes_batches:
            self.answer(worker, done(task))

    def unit_done(self, task: IterateTask) -> Result:
        """What the iterator gives; its state tells the unit behind it."""
        if task.unit >= self.units:
            return IteratorOver(task.task, self.units)
        state = f"{task.shard} {task.unit + 1}".encode()
        return BatchDone(task.task, task.rows, 5000, b"layout", 4900, 100, state=state)

    def _count_up(self, task: OrderTask) -> OrderDone:
        return OrderDone(task.task, np.arange(self.length, dtype=np.int64), None, None)


def done(task: BatchTask, size_bytes: int = 5000) -> BatchDone:
    """The batch is made, with all its rows."""
    return BatchDone(task.task, len(task.indices), size_bytes, b"layout", 4900, 100)


def bad_sample(index: int) -> Failure:
    """What a worker says of a sample that raised."""
    return Failure(ErrorCode.SAMPLE, index, "builtins:ValueError", f"sample {index} is bad", "tb")
