"""The daemon's hold on zygotes and workers: starts and ends them, passes tasks and results.

It decides nothing: which worker, retries and time limits are the core's. Runs in the loop's thread and
waits for nobody.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loaderd_server.core.events import (
    DatasetFailed,
    DatasetLost,
    DatasetReady,
    Event,
    WorkerAnswered,
    WorkerEnded,
    WorkerStarted,
)
from loaderd_server.core.tasks import Indices, OrderDone, Task
from loaderd_server.workers import progress
from loaderd_server.workers.frames import Fields, Kind, pack, read_result, task_fields
from loaderd_server.workers.line import LoopLine
from loaderd_server.workers.plan import DatasetPlan
from loaderd_server.workers.plan_codec import encode_plan
from loaderd_server.workers.progress import ProgressPage
from loaderd_server.workers.zygote_process import ZygoteProcess, how_ended

log = logging.getLogger("loaderd.workers")

#: After a worker's line has ended, how long its zygote may take to say how.
_STATUS_WAIT_S = 2.0
#: How long the zygote of a removed dataset may take to end by itself.
_DEPARTURE_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process of the daemon's tree."""

    role: str
    dataset: str
    pid: int
    state: str


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """What the daemon holds of one worker."""

    number: int
    dataset: str
    line: LoopLine
    page: ProgressPage
    pid: int = 0
    pidfd: int = -1
    #: To be killed as soon as it is known: its zygote has not forked it yet.
    doomed: bool = False
    ended: bool = False
    #: Its dataset was removed: a worker of another dataset of that name is not meant.
    is_leaving: bool = False
    timer: asyncio.TimerHandle | None = None


class WorkerPool:
    """All zygotes and workers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        plans: Sequence[DatasetPlan],
        on_event: Callable[[Event], None],
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self._workers: dict[int, WorkerProcess] = {}
        self._arenas: dict[int, tuple[int, int]] = {}
        self._noted: set[str] = set()
        self._departures: set[asyncio.Task[None]] = set()
        self._plans = {plan.name: plan for plan in plans}
        self._zygotes = {
            plan.name: ZygoteProcess(loop, plan, self._on_zygote, self._zygote_lost)
            for plan in plans
        }

    def start(self) -> None:
        """Execs a zygote for each dataset. From the main thread: they die with the thread."""
        for zygote in self._zygotes.values():
            zygote.start()

    def add_dataset(self, plan: DatasetPlan) -> None:
        """Execs a zygote for one more dataset. From the main thread."""
        self._plans[plan.name] = plan
        zygote = ZygoteProcess(self._loop, plan, self._on_zygote, self._zygote_lost)
        self._zygotes[plan.name] = zygote
        zygote.try_start()

    def change_plan(self, plan: DatasetPlan) -> None:
        """Other streams draw from a dataset; tasks that were sent before are done by the old plan."""
        if plan == self._plans[plan.name]:
            return
        self._plans[plan.name] = plan
        self._zygotes[plan.name].change_plan(plan)
        for worker in self._workers.values():
            if worker.dataset == plan.name and not worker.is_leaving:
                worker.line.send(pack(Kind.NEW_PLAN, encode_plan(plan)))

    def remove_dataset(self, dataset: str) -> None:
        """Ends a dataset's processes; WorkerEnded tells of each worker when it is gone for sure."""
        zygote = self._zygotes.pop(dataset)
        del self._plans[dataset]
        workers = [w for w in self._workers.values() if w.dataset == dataset and not w.is_leaving]
        for worker in workers:
            worker.is_leaving = True
            _kill(worker)
        task = self._loop.create_task(self._see_off(zygote, workers))
        self._departures.add(task)
        task.add_done_callback(self._departures.discard)

    async def _see_off(self, zygote: ZygoteProcess, workers: list[WorkerProcess]) -> None:
        # A zygote ends its workers, also those it was still to fork, before it ends itself.
        await zygote.stop(_DEPARTURE_S)
        for worker in workers:
            self._worker_ended(worker.number, "ended with its dataset")

    def add_arena(self, arena: int, descriptor: int, size_bytes: int) -> None:
        """Makes an arena known to every worker, before any task that names it."""
        self._arenas[arena] = (os.dup(descriptor), size_bytes)
        for worker in self._workers.values():
            worker.line.send(pack(Kind.ARENA, arena, size_bytes), [descriptor])

    def _ready(
        self, dataset: str, length: int | None, threads: int, is_iterable: bool, own_collate: bool
    ) -> DatasetReady:
        """The event for a BUILT frame."""
        forks_locks = threads > 1 and self._plans[dataset].process.start_method == "fork"
        return DatasetReady(dataset, length, is_iterable, forks_locks, own_collate)

    def drop_arena(self, arena: int) -> None:
        """No task names the arena any more: workers unmap it."""
        found = self._arenas.pop(arena, None)
        if found is None:
            return
        os.close(found[0])
        for worker in self._workers.values():
            worker.line.send(pack(Kind.ARENA_GONE, arena))

    def start_worker(self, worker: int, dataset: str) -> None:
        """Has a worker forked; WorkerStarted or WorkerEnded tells how it went."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        descriptor = progress.create()
        line = LoopLine(
            self._loop,
            ours,
            lambda kind, fields: self._on_worker(worker, kind, fields),
            lambda: self._line_ended(worker),
        )
        page = ProgressPage(os.dup(descriptor))
        self._workers[worker] = WorkerProcess(worker, dataset, line, page)
        plan = self._plans[dataset]
        if plan.process.start_method == "spawn":
            line.send(pack(Kind.PLAN, encode_plan(plan)))
        for arena, (arena_descriptor, size_bytes) in self._arenas.items():
            line.send(pack(Kind.ARENA, arena, size_bytes), [arena_descriptor])
        self._zygotes[dataset].send(pack(Kind.FORK, worker), [theirs.fileno(), descriptor])
        theirs.close()
        os.close(descriptor)

    def stop_worker(self, worker: int) -> None:
        """Ends a worker that has nothing in hand."""
        found = self._workers.get(worker)
        if found is not None:
            found.line.send(pack(Kind.STOP))

    def kill_worker(self, worker: int, why: str) -> None:
        """Ends a worker at once; one that is still to be forked, as soon as it is."""
        found = self._workers.get(worker)
        if found is None:
            return
        log.warning("worker %d (pid %d) %s: killed", worker, found.pid, why)
        found.doomed = True
        _kill(found)

    def assign(self, worker: int, task: Task) -> None:
        """Sends a task to a worker."""
        found = self._workers.get(worker)
        if found is not None:
            found.line.send(pack(Kind.TASK, *task_fields(task)))

    def describe(self) -> tuple[ProcessStatus, ...]:
        """Every zygote and worker there is."""
        zygotes = [
            ProcessStatus("zygote", name, zygote.pid, zygote.state)
            for name, zygote in self._zygotes.items()
        ]
        workers = [
            ProcessStatus(f"worker {w.number}", w.dataset, w.pid, "up" if w.pid else "starting")
            for w in self._workers.values()
        ]
        return (*zygotes, *workers)

    async def stop(self, deadline_s: float) -> None:
        """Ends every process; those still there at the deadline are killed."""
        zygotes = (zygote.stop(deadline_s) for zygote in self._zygotes.values())
        await asyncio.gather(*zygotes, *self._departures)
        for worker in list(self._workers.values()):
            self._forget(worker)
        for descriptor, _size in self._arenas.values():
            os.close(descriptor)
        self._arenas.clear()

    def kill_all(self) -> None:
        """Ends every process at once; the workers go with their zygotes."""
        for zygote in self._zygotes.values():
            zygote.kill()

    # --- what zygotes say -------------------------------------------------------------------

    def _on_zygote(self, dataset: str, kind: Kind, fields: Fields) -> None:
        match kind:
            case Kind.BUILT:
                self._on_event(self._ready(dataset, *fields))
            case Kind.FORKED:
                self._forked(*fields)
            case Kind.ENDED:
                self._worker_ended(fields[0], how_ended(fields[1]))
            case Kind.NOT_FORKED:
                self._worker_ended(fields[0], f"could not be started: {fields[1]}")

    def _zygote_lost(self, dataset: str, event: DatasetFailed | DatasetLost) -> None:
        lost = [w for w in self._workers.values() if w.dataset == dataset and not w.is_leaving]
        for worker in lost:
            worker.line.drain()
            _kill(worker)
            self._forget(worker)
        self._on_event(event)

    def _forked(self, number: int, pid: int) -> None:
        worker = self._workers.get(number)
        if worker is None:
            return
        worker.pid = pid
        try:
            worker.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended already, and ENDED follows
            return
        if worker.doomed:
            _kill(worker)

    # --- what workers say -------------------------------------------------------------------

    def _on_worker(self, number: int, kind: Kind, fields: Fields) -> None:
        worker = self._workers.get(number)
        if worker is None:
            return
        match kind:
            case Kind.HELLO:
                worker.pid, notes = fields
                self._note(notes)
                self._on_event(WorkerStarted(number, worker.pid))
            case Kind.RESULT:
                *result, rss = fields
                self._on_event(WorkerAnswered(number, read_result(result), rss))
            case Kind.ORDER:
                task, lengths, rss = fields
                order = _map_order(task, lengths, worker.line.descriptors.popleft())
                self._on_event(WorkerAnswered(number, order, rss))

    def _note(self, notes: list[str]) -> None:
        for note in notes:
            if note not in self._noted:
                self._noted.add(note)
                log.warning("%s", note)

    def _line_ended(self, number: int) -> None:
        worker = self._workers.get(number)
        if worker is not None and worker.timer is None:
            worker.timer = self._loop.call_later(_STATUS_WAIT_S, self._silent_end, worker)

    def _silent_end(self, worker: WorkerProcess) -> None:
        # User code can have closed the line of a worker that lives on: it must write no more.
        _kill(worker)
        self._worker_ended(
            worker.number, "closed its line, and its zygote did not say how it ended"
        )

    def _worker_ended(self, number: int, how: str) -> None:
        worker = self._workers.get(number)
        if worker is None or worker.ended:
            return
        worker.ended = True
        worker.line.drain()
        row = worker.page.read()
        self._forget(worker)
        self._on_event(WorkerEnded(number, how, row))

    def _forget(self, worker: WorkerProcess) -> None:
        del self._workers[worker.number]
        if worker.timer is not None:
            worker.timer.cancel()
        if worker.pidfd >= 0:
            os.close(worker.pidfd)
        worker.line.close()
        worker.page.close()


def _kill(worker: WorkerProcess) -> None:
    if worker.pidfd < 0:
        return
    try:
        signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
    except ProcessLookupError:  # it ended by itself; its end is on its way
        return


#: An order that is mapped keeps a descriptor as long as it is known, and many trainers with orders of
#: their own would use them up: smaller ones are copied (1 MiB takes 0.1 ms).
_COPIED_ORDER_BYTES = 1 << 20


def _map_order(task: int, lengths: list[int], descriptor: int) -> OrderDone:
    size = 8 * sum(length for length in lengths if length > 0)
    whole: Indices = np.empty(0, dtype=np.int64)
    if size <= _COPIED_ORDER_BYTES:
        whole = np.frombuffer(os.pread(descriptor, size, 0), dtype=np.int64)
    else:
        mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ)
        whole = np.frombuffer(mapped, dtype=np.int64)
    os.close(descriptor)
    parts: list[Indices | None] = []
    start = 0
    for length in lengths:
        parts.append(None if length < 0 else whole[start : start + length])
        start += max(length, 0)
    indices, occurrences, cuts = parts
    assert indices is not None
    return OrderDone(task, indices, occurrences, cuts)
