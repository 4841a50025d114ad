"""The dispatcher: which worker gets which job, and when workers are started and ended."""

from __future__ import annotations

from typing import Protocol

from loaderd_server.core.actions import Assign, KillWorker, Severity, StartWorker, StopWorker
from loaderd_server.core.jobs import Job, WorkerLoss
from loaderd_server.core.settings import WorkerSettings
from loaderd_server.core.tasks import Result
from loaderd_server.core.turn import Turn
from loaderd_server.core.workers import Given, Team, Worker, WorkerState

#: Deaths without an answer between them, after which starts are spaced out.
_FREE_RESPAWNS = 5
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
#: Deaths with nothing in hand (at the start, say), after which what waits for the dataset fails.
_HOPELESS_STARTS = 5
#: A worker that says nothing for so long after StartWorker is ended.
_START_S = 60.0


class BatchSource(Protocol):
    """Where batches that are wanted come from: the scheduler."""

    def due(self, dataset: str) -> int | None:
        """When the most urgent wanted batch of a dataset is due, or None where none is wanted."""

    def begin(self, dataset: str) -> Job | None:
        """The job that makes it; None where it has no slot to go to now."""

    def only(self, dataset: str) -> int | None:
        """The worker that must make the most urgent batch; None for any."""

    def demand(self, dataset: str) -> int:
        """How many batches are wanted and not being made."""

    def give_up(self, dataset: str, text: str) -> None:
        """No worker of the dataset starts: what is wanted now cannot be had."""


class Dispatcher:
    """Owns all workers. At most ``settings.count`` have something in hand at any time."""

    def __init__(self, settings: WorkerSettings, turn: Turn) -> None:
        self._settings = settings
        self._turn = turn
        self._workers = 0
        self._tasks = 0
        self.teams: dict[str, Team] = {}
        self.workers: dict[int, Worker] = {}

    # --- datasets ---------------------------------------------------------------------------

    def add_dataset(self, dataset: str) -> None:
        """A dataset that has not been built yet."""
        self.teams.setdefault(dataset, Team(dataset))

    def dataset_ready(self, dataset: str, *, forks_locks: bool) -> None:
        """Workers can be forked from now on."""
        self.teams[dataset].is_ready = True
        self.teams[dataset].forks_locks = forks_locks

    def dataset_lost(self, dataset: str, text: str) -> None:
        """Its zygote died, and all its workers: their jobs start again when it is back."""
        team = self.teams[dataset]
        team.is_ready = False
        for worker in tuple(team.workers.values()):
            self._remove(team, worker)
            head, rest = self._drop_hands(worker)
            for given in rest:
                team.submit(given.job)
            if head is not None:
                loss = WorkerLoss(worker.number, worker.pid, text, None, False, True)
                head.job.worker_lost(loss)

    def dataset_failed(self, dataset: str, text: str) -> None:
        """There will be no dataset: nothing of it can be done."""
        team = self.teams[dataset]
        self.dataset_lost(dataset, text)
        for job in team.take_all():
            job.abandoned(text)

    def remove_dataset(self, dataset: str) -> None:
        """No stream draws from it any more; its workers are still to say that they have ended."""
        team = self.teams.pop(dataset, None)
        if team is not None:
            team.is_gone = True
            for job in team.take_all():
                job.abandoned(f"dataset {dataset!r} was removed")

    # --- jobs -------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """A job that a worker of its dataset is to do."""
        self.teams[job.dataset].submit(job)

    def drop_unwanted(self, text: str) -> None:
        """Takes back every waiting job whose stream is no more."""
        for team in self.teams.values():
            for job in team.take_unwanted():
                job.abandoned(text)

    def withdraw(self, job: Job) -> bool:
        """Takes back a job that no worker has yet; False where one has."""
        return self.teams[job.dataset].withdraw(job)

    def pump(self, source: BatchSource) -> None:
        """Gives out jobs, most urgent first, as long as a worker can take one."""
        self._give_up_hopeless(source)
        while any(self._serve(team, source) for team in self._in_turn(source)):
            pass

    def _in_turn(self, source: BatchSource) -> list[Team]:
        """Datasets with something to do; those with the fewest busy workers first."""
        hungry = [team for team in self.teams.values() if self._is_hungry(team, source)]
        if len(hungry) > 1:
            hungry.sort(key=lambda team: (team.busy, team.served_tick))
        return hungry

    def _is_hungry(self, team: Team, source: BatchSource) -> bool:
        if not team.is_ready or (not team.workers and self._turn.now < team.not_before):
            return False
        return team.first() is not None or source.due(team.dataset) is not None

    def _serve(self, team: Team, source: BatchSource) -> bool:
        """Gives out one job of a dataset; False where that cannot be done now."""
        first, due = team.first(), source.due(team.dataset)
        from_queue = first is not None and (due is None or first.due <= due)
        only = first.only_worker if first is not None and from_queue else source.only(team.dataset)
        if only is not None and only in team.workers:
            worker = self._this_worker(team.workers[only])
        else:
            worker = self._worker_for(
                team, source, alone=first is not None and from_queue and first.alone
            )
        if worker is None:
            return False
        job = team.take_first() if from_queue else source.begin(team.dataset)
        if job is None:  # no slot for it, this turn; what waits in the queue may have one
            return first is not None
        self._give(team, worker, job)
        return True

    def _give(self, team: Team, worker: Worker, job: Job) -> None:
        self._tasks += 1
        self._turn.tick += 1
        team.served_tick = self._turn.tick
        if not worker.hands:
            team.busy += 1
            worker.since = self._turn.now
        worker.hands.append(Given(self._tasks, job))
        job.given_to(worker.number)
        self._turn.wake_at(self._deadline(worker))
        self._turn.do(Assign(worker.number, job.task(self._tasks)))

    # --- which worker -----------------------------------------------------------------------

    def _worker_for(self, team: Team, source: BatchSource, *, alone: bool) -> Worker | None:
        """An idle worker, or a place in the hands of a busy one; or None, and one may be started."""
        free_places = self._settings.count - sum(t.busy for t in self.teams.values())
        if free_places > 0:
            for worker in team.workers.values():
                if worker.takes_more and not worker.hands:
                    return worker
            if self._start_some(team, source, free_places) or team.starting:
                return None
        return None if alone else self._second_place(team, source, free_places)

    def _this_worker(self, worker: Worker) -> Worker | None:
        """A worker that has what the job needs, if it can take one more."""
        if not self.has_room(worker.number):
            return None
        is_idle = not worker.hands
        free_places = self._settings.count - sum(t.busy for t in self.teams.values())
        return None if is_idle and free_places <= 0 else worker

    def has_room(self, number: int) -> bool:
        """Whether a worker can take a job behind those in its hands; a gone one holds nobody up."""
        worker = self.workers.get(number)
        if worker is None:
            return True
        room = len(worker.hands) < self._settings.depth
        return worker.takes_more and room and not worker.is_alone_with_one

    def _second_place(self, team: Team, source: BatchSource, free_places: int) -> Worker | None:
        """The least busy worker that has room in its hands, unless another dataset is due."""
        if free_places <= 0 and len(self.teams) > 1 and self._should_yield(team, source):
            return None
        room = [
            worker
            for worker in team.workers.values()
            if worker.takes_more
            and 0 < len(worker.hands) < self._settings.depth
            and not worker.is_alone_with_one
        ]
        return min(room, key=lambda worker: len(worker.hands)) if room else None

    def _should_yield(self, team: Team, source: BatchSource) -> bool:
        """Whether a dataset with fewer busy workers waits for a place: let a worker run dry."""
        return any(
            other is not team
            and (other.busy == 0 or other.busy < team.busy - 1)
            and self._is_hungry(other, source)
            for other in self.teams.values()
        )

    def _start_some(self, team: Team, source: BatchSource, free_places: int) -> bool:
        starting = sum(t.starting for t in self.teams.values())
        places = min(free_places - starting, self._settings.count - team.living())
        if places <= 0 or self._turn.now < team.not_before:
            return False
        demand = team.waiting + source.demand(team.dataset) - team.starting
        for _ in range(min(places, max(demand, 1 if team.starting == 0 else 0))):
            self._start(team)
        return True

    def _start(self, team: Team) -> None:
        self._workers += 1
        worker = Worker(self._workers, team, self._turn.now)
        team.workers[worker.number] = worker
        team.starting += 1
        self.workers[worker.number] = worker
        self._turn.do(StartWorker(worker.number, team.dataset))
        self._turn.wake_at(worker.since + _START_S)

    # --- what workers say -------------------------------------------------------------------

    def started(self, number: int, pid: int) -> None:
        """A worker is there."""
        worker = self.workers.get(number)
        if worker is None or worker.state is not WorkerState.STARTING:
            return
        worker.team.starting -= 1
        worker.pid = pid
        worker.state = WorkerState.READY
        worker.since = self._turn.now
        self._turn.wake_at(self._deadline(worker))

    def answered(self, number: int, result: Result, rss_growth_bytes: int) -> None:
        """A worker finished the first task in its hands."""
        worker = self.workers.get(number)
        if worker is None or not worker.hands or worker.hands[0].task != result.task:
            text = f"worker {number} answered task {result.task}, which it was not given; ignored"
            self._turn.log(Severity.ERROR, text)
            return
        team = worker.team
        given = worker.hands.popleft()
        worker.tasks_done += 1
        worker.busy_s += self._turn.now - worker.since
        worker.since = self._turn.now
        team.deaths_in_row = team.idle_deaths_in_row = 0
        if not worker.hands:
            team.busy -= 1
        limit = self._settings.max_rss_bytes
        if limit is not None and rss_growth_bytes > limit and worker.state is WorkerState.READY:
            self._retire(worker, rss_growth_bytes, limit)
        self._rest(worker)
        given.job.answered(result)

    def ended(self, number: int, how: str, row: int | None) -> None:
        """A worker is gone; the job it was at learns so, those behind it did no harm."""
        worker = self.workers.get(number)
        if worker is None:
            return
        team = worker.team
        self._remove(team, worker)
        head, rest = self._drop_hands(worker)
        if team.is_gone:
            for given in (head, *rest) if head is not None else ():
                given.job.abandoned(how)
            return
        for given in rest:
            team.submit(given.job)
        if worker.state is not WorkerState.ENDING or head is not None:
            self._count_death(team, worker, how, head)
        if head is None:
            return
        killed = worker.killed_at_task
        if killed is not None and killed != head.task:
            # It answered just before it was killed for being late: this job had only begun.
            team.submit(head.job)
            return
        timed_out = killed is not None
        may_be_lock = timed_out and team.forks_locks and worker.tasks_done == 0
        loss = WorkerLoss(number, worker.pid, how, row, timed_out, False, may_be_lock)
        head.job.worker_lost(loss)

    def _count_death(self, team: Team, worker: Worker, how: str, head: Given | None) -> None:
        self._turn.log(
            Severity.WARNING,
            f"worker {worker.number} (pid {worker.pid}, dataset {team.dataset!r}) {how} "
            + (f"while it was to {head.job}" if head is not None else "with nothing in hand"),
        )
        if head is not None and head.job.alone:
            return  # as was to be feared; the search for the sample needs few such deaths
        team.deaths_in_row += 1
        if head is None:
            team.idle_deaths_in_row += 1
            team.is_hopeless = team.idle_deaths_in_row >= _HOPELESS_STARTS and not team.workers
        over = team.deaths_in_row - _FREE_RESPAWNS
        if over >= 0:
            pause_s = min(_FIRST_PAUSE_S * 2 ** min(over, 20), _LONGEST_PAUSE_S)
            team.not_before = self._turn.now + pause_s
            self._turn.wake_at(team.not_before)

    def _give_up_hopeless(self, source: BatchSource) -> None:
        """Where workers keep dying at their start, whoever waits for the dataset is told, once a try."""
        for team in self.teams.values():
            if not team.is_hopeless:
                continue
            team.is_hopeless = False
            text = _hopeless_text(team)
            for job in team.take_all():
                job.abandoned(text)
            source.give_up(team.dataset, text)

    def _drop_hands(self, worker: Worker) -> tuple[Given | None, list[Given]]:
        given = list(worker.hands)
        worker.hands.clear()
        return (given[0] if given else None), given[1:]

    def _remove(self, team: Team, worker: Worker) -> None:
        del self.workers[worker.number]
        del team.workers[worker.number]
        team.starting -= worker.state is WorkerState.STARTING
        team.busy -= bool(worker.hands)

    # --- ends and deadlines -----------------------------------------------------------------

    def _retire(self, worker: Worker, rss_bytes: int, limit_bytes: int) -> None:
        worker.state = WorkerState.RETIRING
        self._turn.log(
            Severity.INFO,
            f"worker {worker.number} (pid {worker.pid}) grew by {rss_bytes} bytes, over "
            f"workers.max_rss = {limit_bytes}: it is replaced",
        )

    def _rest(self, worker: Worker) -> None:
        """What an answer leads to for the worker itself."""
        if not worker.hands and worker.state is WorkerState.RETIRING:
            self._stop(worker)
        else:
            self._turn.wake_at(self._deadline(worker))

    def _stop(self, worker: Worker) -> None:
        worker.state = WorkerState.ENDING
        self._turn.do(StopWorker(worker.number))

    def timer_fired(self) -> None:
        """Kills workers that are late, ends those that were idle for long, sets the next timer."""
        for worker in tuple(self.workers.values()):
            self._check_deadlines(worker)
        for team in self.teams.values():
            if team.not_before > self._turn.now:
                self._turn.wake_at(team.not_before)

    def _check_deadlines(self, worker: Worker) -> None:
        deadline = self._deadline(worker)
        if deadline is None:
            return
        if self._turn.now < deadline:
            self._turn.wake_at(deadline)
        elif worker.hands and worker.hands[0].job.is_unlimited:
            self._turn.wake_at(self._turn.now + (deadline - worker.since))  # looked at again
        elif worker.hands:
            task = worker.hands[0].task
            self._kill(worker, task, f"task {task} took longer than workers.timeout_s")
        elif worker.state is WorkerState.STARTING:
            self._kill(worker, 0, f"it did not start within {_START_S:g} s")
        else:
            self._stop(worker)

    def _deadline(self, worker: Worker) -> float | None:
        """When patience with it ends: with its task, its start, its idleness."""
        if worker.killed_at_task is not None:
            return None
        if worker.state is WorkerState.STARTING:
            return worker.since + _START_S
        if worker.hands:
            limit_s = self._settings.timeout_s
        elif worker.state is WorkerState.READY and worker.team.living() > 1:
            limit_s = self._settings.idle_s
        else:
            return None
        return None if limit_s is None else worker.since + limit_s

    def _kill(self, worker: Worker, task: int, why: str) -> None:
        worker.killed_at_task = task
        self._turn.do(KillWorker(worker.number, why))


def _hopeless_text(team: Team) -> str:
    return (
        f"workers of dataset {team.dataset!r} died {team.idle_deaths_in_row} times in a row before "
        f"they could take a task; they are started again in at most {_LONGEST_PAUSE_S:g} s. The "
        f"daemon's log has the reason of each; look at worker_init and at memory limits"
    )
