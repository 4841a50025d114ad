"""Fake workers, zygotes and arenas: what the shell would do with the core's actions."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from tests.simulation.depot import Depot
from tests.simulation.scenario import DatasetScript
from tests.simulation.truth import Reading, Row

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.actions import (
    Assign,
    Keep,
    KillWorker,
    MakeArena,
    StartWorker,
    StopWorker,
)
from loaderd_server.core.events import (
    ArenaReady,
    ArenaRefused,
    DatasetFailed,
    DatasetLost,
    DatasetReady,
    Event,
    WorkerAnswered,
    WorkerEnded,
    WorkerStarted,
)
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTask,
    BatchTooLarge,
    CheckDone,
    CheckTask,
    FillDone,
    FillTask,
    IterateTask,
    IteratorOver,
    MeasureDone,
    MeasureIterateTask,
    MeasureTask,
    Offers,
    OrderTask,
    ProbeDone,
    ProbeTask,
    Result,
    RowFailure,
    Task,
    TaskFailed,
)

if TYPE_CHECKING:
    from tests.simulation.world import World


SampleTask = BatchTask | MeasureTask | ProbeTask | IterateTask

_NO_DATASET = Failure(ErrorCode.STREAM_ENDED, -1, "builtins:OSError", "the disk is gone")


@dataclass(frozen=True)
class Contents:
    """What lies in a slot's memory; compared by identity, as bytes in a real slot would be read."""

    address: BatchAddress | None
    rows: tuple[Row, ...]


@dataclass
class FakeWorker:
    """A worker process; ``hands[0]`` is in progress."""

    number: int
    dataset: str
    hands: deque[Task] = field(default_factory=deque)
    is_started: bool = False
    is_gone: bool = False
    #: What the task in progress comes to: an answer, or the row at which it ends or hangs.
    result: Result | None = None
    row: int | None = None
    #: It takes as long as the core has patience.
    is_late: bool = False
    #: Counts tasks begun, so that news of an earlier one is known as old.
    begun: int = 0
    #: Tasks whose samples it holds ready, and what it is to write when it is done with its hands.
    ready: dict[int, tuple[BatchTask | FillTask, Offers]] = field(default_factory=dict)
    keeps: deque[Keep] = field(default_factory=deque)


class Fleet:
    """Workers of all datasets, and the memory they write to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._draws = world.draws
        self.workers: dict[int, FakeWorker] = {}
        self.depot = Depot(world, self)
        #: (arena, offset) -> what lies there.
        self.memory: dict[tuple[int, int], Contents] = {}
        self._used_bytes = 0
        #: Its daemon was killed, and so were its workers.
        self.is_dead = False
        self._is_there = {d.name: False for d in world.scenario.datasets}
        self._stillborn = {d.name: d.stillborn for d in world.scenario.datasets}
        self._born = {d.name: 0 for d in world.scenario.datasets}
        self._losses = {d.name: 0 for d in world.scenario.datasets}
        self._accidents: Counter[BatchAddress] = Counter()

    def tell_core(self, event: Event) -> None:
        """Unless its daemon was killed."""
        if not self.is_dead:
            self._world.tell_core(event)

    # --- zygotes ----------------------------------------------------------------------------

    def open(self) -> None:
        """Builds every dataset, and plans the deaths of zygotes."""
        for script in self._world.scenario.datasets:
            self._world.later(self._draws.uniform(0, 0.5), self._built, script.name, script.length)
            for _ in range(script.losses):
                self._world.later(self._draws.uniform(0.5, 3), self._lose, script.name)

    def _built(self, dataset: str, length: int) -> None:
        self._is_there[dataset] = True
        script = self._world.truth.datasets[dataset]
        reads_ahead = self._draws.random() < 0.3
        self.tell_core(
            DatasetReady(
                dataset,
                length,
                script.is_iterable,
                cacheable=script.cacheable,
                reads_ahead=reads_ahead,
            )
        )

    def _lose(self, dataset: str) -> None:
        """A zygote dies, unless that could be taken for a sample's doing."""
        mine = [w for w in self.workers.values() if w.dataset == dataset]
        if not self._is_there[dataset] or any(self._is_delicate(w) for w in mine):
            return
        self._is_there[dataset] = False
        self._losses[dataset] += 1
        for worker in mine:
            self._gone(worker)
        self.tell_core(DatasetLost(dataset, "was killed by signal 9 (SIGKILL)"))
        script = self._world.truth.datasets[dataset]
        after_s = self._draws.uniform(0.01, 0.5)
        if script.is_lost_for_good and self._losses[dataset] == script.losses:
            self._world.later(after_s, self.tell_core, DatasetFailed(dataset, _NO_DATASET))
        else:
            self._world.later(after_s, self._built, dataset, script.length)

    def _is_delicate(self, worker: FakeWorker) -> bool:
        """Whether the loss of this worker could count as one death too many for innocents.

        The first loss of a zygote counts against nobody.
        """
        if not worker.hands or not self._losses[worker.dataset]:
            return False
        task = worker.hands[0]
        if isinstance(task, BatchTask | IterateTask):
            return bool(self._accidents[task.address])
        return isinstance(task, ProbeTask)

    # --- processes --------------------------------------------------------------------------

    def start(self, action: StartWorker) -> None:
        """Forks a worker, that may die on its way."""
        self._world.check.that(self._is_there[action.dataset], action, "without a zygote")
        self._world.check.that(action.worker not in self.workers, action, "number in use")
        worker = FakeWorker(action.worker, action.dataset)
        self.workers[action.worker] = worker
        script = self._world.truth.datasets[action.dataset]
        if self._stillborn[action.dataset] > 0 and self._born[action.dataset] >= script.born_before:
            self._stillborn[action.dataset] -= 1
            self._world.later(0.001, self._end, worker, None)
        else:
            self._world.later(self._draws.uniform(0, 0.01), self._started, worker)

    def _started(self, worker: FakeWorker) -> None:
        if not worker.is_gone:
            worker.is_started = True
            self._born[worker.dataset] += 1
            self.tell_core(WorkerStarted(worker.number, 1000 + worker.number))

    def stop(self, action: StopWorker) -> None:
        """Ends a worker that has nothing in hand."""
        worker = self.workers.get(action.worker)
        if worker is not None:
            self._world.check.that(not worker.hands, action, "with tasks in hand")
            self._world.later(0.001, self._end, worker, None)

    def kill(self, action: KillWorker) -> None:
        """Ends a worker at once; an answer may be on its way already."""
        worker = self.workers.get(action.worker)
        if worker is None:
            return
        if worker.is_late:
            self._world.later(0.0, self._finish, worker, worker.begun)
        self._world.later(self._draws.uniform(0, 0.01), self._end, worker, worker.row)

    def _end(self, worker: FakeWorker, row: int | None) -> None:
        if worker.is_gone:
            return
        self._gone(worker)
        self.tell_core(WorkerEnded(worker.number, "was killed by signal 9 (SIGKILL)", row))

    def _gone(self, worker: FakeWorker) -> None:
        worker.is_gone = True
        del self.workers[worker.number]
        self.depot.last_gasp(worker)

    # --- tasks ------------------------------------------------------------------------------

    def keep(self, action: Keep) -> None:
        """Has a worker write what it holds ready, when its hands are empty or between two tasks."""
        worker = self.workers.get(action.worker)
        if worker is not None:
            worker.keeps.append(action)
            self._world.later(self._draws.uniform(0, 0.02), self._write, worker)

    def _write(self, worker: FakeWorker) -> None:
        if worker.is_gone or not worker.keeps:
            return
        if worker.hands and self._draws.random() < 0.7:
            self._world.later(self._draws.uniform(0, 0.02), self._write, worker)
        else:
            self.depot.keep(worker, worker.keeps.popleft())

    def assign(self, action: Assign) -> None:
        """Puts a task into a worker's hands."""
        worker = self.workers.get(action.worker)
        self._world.check.that(worker is not None, action, "to a worker that is not there")
        assert worker is not None
        self._world.check.that(worker.is_started, action, "before it started")
        worker.hands.append(action.task)
        if len(worker.hands) == 1:
            self._begin(worker)

    def _begin(self, worker: FakeWorker) -> None:
        task = worker.hands[0]
        worker.begun += 1
        if isinstance(task, BatchTask | IterateTask):
            # A worker that is at work has the slot's bytes in disorder.
            self.memory[task.place.arena, task.place.offset] = Contents(None, ())
        if isinstance(task, BatchTask):
            self.depot.look(task)
        worker.result, worker.row, hangs = self._come_to(worker, task)
        took_s = self._draws.choice((0.0, 0.002, 0.02, 0.1))
        if worker.result is not None and self._is_late(task):
            # It answers just as the core has it killed, and before it dies.
            took_s = (self._world.scenario.settings.workers.timeout_s or 0.0) + took_s / 20
            worker.row = 0
            worker.is_late = True
        if worker.result is not None:
            self._world.later(took_s, self._finish, worker, worker.begun)
        elif not hangs:
            self._world.later(took_s, self._die, worker, worker.begun)

    def _finish(self, worker: FakeWorker, begun: int) -> None:
        if worker.is_gone or worker.begun != begun or not worker.hands:
            return
        task, result = worker.hands.popleft(), worker.result
        assert result is not None
        worker.row = None
        worker.is_late = False
        if (
            isinstance(task, BatchTask | IterateTask)
            and isinstance(result, BatchDone)
            and result.rows
        ):
            rows = (
                self._unit_rows(task)
                if isinstance(task, IterateTask)
                else self._rows(task, leave_out={f.row for f in result.skipped})
            )
            self.memory[task.place.arena, task.place.offset] = Contents(task.address, rows)
        if isinstance(result, BatchDone) and isinstance(task, BatchTask):
            result = self._with_cache(worker, task, result)
        elif isinstance(result, FillDone) and isinstance(task, FillTask):
            worker.ready[task.task] = (task, result.offers)
        if worker.hands:
            self._begin(worker)
        growth = self._draws.choice((0, 0, 0, 2000))
        self.tell_core(WorkerAnswered(worker.number, result, growth))

    def _with_cache(self, worker: FakeWorker, task: BatchTask, done: BatchDone) -> BatchDone:
        """What the worker says of the cache: what it read, what it could not, what it offers."""
        hits = self.depot.look(task)
        if task.cached is None:
            return done
        unread: tuple[int, ...] = ()
        if hits and self._draws.random() < 0.02:
            unread = (int(np.flatnonzero(task.cached.memory >= 0)[0]),)
        done = replace(done, hits=hits - len(unread), unread=unread)
        skipped = {failure.row for failure in done.skipped}
        wished = [row for row in task.cached.offer.tolist() if row not in skipped]
        if not wished:
            return done
        offers = self.depot.offers(task, wished)
        worker.ready[task.task] = (task, offers)
        return replace(done, offers=offers)

    def _die(self, worker: FakeWorker, begun: int) -> None:
        if not worker.is_gone and worker.begun == begun:
            self._end(worker, worker.row if self._draws.random() < 0.7 else None)

    @staticmethod
    def _rows(task: BatchTask | MeasureTask | ProbeTask, leave_out: set[int]) -> tuple[Row, ...]:
        indices = task.indices.tolist()
        occurrences = [0] * len(indices) if task.occurrences is None else task.occurrences.tolist()
        rows = zip(indices, occurrences, strict=True)
        return tuple(row for place, row in enumerate(rows) if place not in leave_out)

    def _come_to(self, worker: FakeWorker, task: Task) -> tuple[Result | None, int | None, bool]:
        """What a task leads to: (answer, None), or (None, row) with whether it hangs there."""
        if isinstance(task, MeasureIterateTask):
            return MeasureDone(task.task, self._world.truth.size_bytes(task.address)), None, False
        if isinstance(task, IterateTask):
            dies = self._has_accident(task)
            return (None if dies else self._iterate(task)), None, False
        if isinstance(task, OrderTask):
            return self._world.truth.order_done(task), None, False
        script = self._world.truth.datasets[worker.dataset]
        if isinstance(task, CheckTask | FillTask):
            return self._load(task, script)
        policy = self._world.truth.streams[task.address.stream].on_error.policy
        if self._has_accident(task):
            return None, self._draws.choice((None, 0)), False
        failures = []
        for row, index in enumerate(task.indices.tolist()):
            if index in script.deadly or index in script.hanging:
                return None, row, index in script.hanging
            if index in script.bad:
                failures.append(_row_failure(row, index))
                if policy is ErrorPolicy.RAISE and isinstance(task, BatchTask):
                    break
        return self._answer(task, policy, failures), None, False

    def _load(
        self, task: CheckTask | FillTask, script: DatasetScript
    ) -> tuple[Result | None, int | None, bool]:
        """Samples for the cache alone: those that raise are passed over."""
        good = []
        for row, index in enumerate(task.indices.tolist()):
            if index in script.deadly or index in script.hanging:
                return None, row, index in script.hanging
            if index not in script.bad:
                good.append(row)
        if isinstance(task, FillTask):
            return FillDone(task.task, self.depot.offers(task, good), 0.01), None, False
        fault = "index 0 differs from itself" if script.is_random else ""
        largest = max((script.size_of(int(task.indices[row])) for row in good), default=0)
        return CheckDone(task.task, fault, largest, 0.001), None, False

    def _answer(
        self,
        task: BatchTask | MeasureTask | ProbeTask,
        policy: ErrorPolicy,
        failures: list[RowFailure],
    ) -> Result:
        rows = len(task.indices) - len(failures)
        size_bytes = self._world.truth.size_bytes(task.address)
        if isinstance(task, ProbeTask):
            return TaskFailed(task.task, tuple(failures)) if failures else ProbeDone(task.task)
        if isinstance(task, MeasureTask):
            return MeasureDone(task.task, size_bytes if rows else 0)
        if failures and policy is not ErrorPolicy.SKIP:
            return TaskFailed(task.task, tuple(failures))
        if rows and size_bytes > task.place.capacity_bytes:
            return BatchTooLarge(task.task, size_bytes)
        return BatchDone(task.task, rows, size_bytes, b"layout", 0, 0, tuple(failures))

    def _iterate(self, task: IterateTask) -> Result:
        """What an iterator gives, from the state that it was restored from."""
        check, truth = self._world.check, self._world.truth
        if task.state:
            state = f"{task.shard} {task.state_unit}".encode()
            check.that(task.state == state, task, "has the state of another place")
            check.that(task.state_unit <= task.unit, task, "has a state from behind it")
        rows = self._unit_rows(task)
        if not rows:
            mine = self._batches_of(task)[task.shard :: task.shards]
            return IteratorOver(task.task, sum(bool(unit) for unit in mine))
        size_bytes = truth.size_bytes(task.address)
        if size_bytes > task.place.capacity_bytes:
            return BatchTooLarge(task.task, size_bytes)
        state = f"{task.shard} {task.unit + 1}".encode()
        return BatchDone(task.task, len(rows), size_bytes, b"layout", 0, 0, state=state)

    def _batches_of(self, task: IterateTask) -> list[list[int]]:
        where = task.address
        return self._world.truth.batches(Reading(where.stream, where.seed, where.epoch, 0, 1))

    def _unit_rows(self, task: IterateTask) -> tuple[Row, ...]:
        batches, number = self._batches_of(task), task.address.batch
        self._world.check.that(
            number == task.unit * task.shards + task.shard, task, "is misnumbered"
        )
        return tuple((i, 0) for i in batches[number]) if number < len(batches) else ()

    def _has_accident(self, task: SampleTask) -> bool:
        """A worker dies without a sample's doing, but never so often that a sample is blamed."""
        if not isinstance(task, BatchTask | IterateTask):
            return False
        most = 1 if self._is_ill(task) else 2
        if self._accidents[task.address] >= most:
            return False
        if self._draws.random() >= self._world.scenario.accident_share:
            return False
        self._accidents[task.address] += 1
        return True

    def _is_late(self, task: Task) -> bool:
        """A task takes as long as the core has patience, once."""
        if self._world.scenario.settings.workers.timeout_s is None:
            return False
        if not isinstance(task, BatchTask) or self._is_ill(task) or self._accidents[task.address]:
            return False
        if self._draws.random() >= self._world.scenario.accident_share / 5:
            return False
        self._accidents[task.address] += 1
        return True

    def _is_ill(self, task: BatchTask | IterateTask) -> bool:
        if isinstance(task, IterateTask):
            return False
        script = self._world.truth.datasets[task.dataset]
        ill = script.bad | script.deadly | script.hanging
        return any(index in ill for index in task.indices.tolist())

    # --- arenas -----------------------------------------------------------------------------

    def make_arena(self, action: MakeArena) -> None:
        """Answers after a while, with a refusal where memory is out or by bad luck."""
        size_bytes = action.slot_bytes * action.count
        self._world.check.that(action.count > 0, action, "is empty")
        over = self._used_bytes + size_bytes > self._world.scenario.budget_bytes
        if over or self._draws.random() < self._world.scenario.refusal_share:
            refusal = ArenaRefused(action.arena, f"needs {size_bytes} bytes; raise memory")
            self._world.later(0.01, self.tell_core, refusal)
            return
        self._used_bytes += size_bytes
        self._world.later(self._draws.uniform(0, 0.1), self._arena_ready, action)

    def _arena_ready(self, action: MakeArena) -> None:
        if self.is_dead:
            return
        self._world.check.arena_made(action)
        self.tell_core(ArenaReady(action.arena))


def _row_failure(row: int, index: int) -> RowFailure:
    text = f"sample {index} is bad"
    return RowFailure(row, Failure(ErrorCode.SAMPLE, index, "builtins:ValueError", text))
