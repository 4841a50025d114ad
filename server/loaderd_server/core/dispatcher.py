"""The dispatcher: which worker gets which job, and when workers are started and ended."""

from __future__ import annotations

from loaderd_server.core.actions import Assign, KillWorker, Severity, StopWorker
from loaderd_server.core.jobs import BatchSource, Job, WorkerLoss
from loaderd_server.core.recruiting import START_S, Recruiter
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


class Dispatcher:
    """Owns all workers. At most ``settings.count`` have something in hand at any time."""

    def __init__(self, settings: WorkerSettings, turn: Turn) -> None:
        self._settings = settings
        self._turn = turn
        self._tasks = 0
        self.teams: dict[str, Team] = {}
        self.workers: dict[int, Worker] = {}
        self._recruiter = Recruiter(settings, turn, self.teams, self.workers, self._is_hungry)
        self.has_room = self._recruiter.has_room

    # --- datasets ---------------------------------------------------------------------------

    def add_dataset(self, dataset: str) -> None:
        """A dataset that has not been built yet."""
        self.teams.setdefault(dataset, Team(dataset))

    def dataset_ready(self, dataset: str, *, forks_locks: bool, iterates: bool = False) -> None:
        """Workers can be forked from now on."""
        self.teams[dataset].is_ready = True
        self.teams[dataset].forks_locks = forks_locks
        self.teams[dataset].iterates = iterates

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
        first = team.first()
        if source.due(team.dataset) is not None or (first is not None and not first.is_spare):
            return True
        return first is not None and not any(
            other.is_ready and (source.due(other.dataset) is not None or other.has_pressing)
            for other in self.teams.values()
        )

    def _serve(self, team: Team, source: BatchSource) -> bool:
        """Gives out one job of a dataset; False where that cannot be done now."""
        first, due = team.first(), source.due(team.dataset)
        from_queue = first is not None and (due is None or first.due <= due)
        only: int | None = None
        if team.iterates:
            is_first = first is not None and from_queue
            only = first.only_worker if first and is_first else source.only(team.dataset)
        if only is not None and only in team.workers:
            worker = self._recruiter.this_worker(team.workers[only])
        else:
            alone = first is not None and from_queue and (first.alone or first.is_spare)
            worker = self._recruiter.any_worker(team, source, alone=alone)
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
            self._kill(worker, 0, f"it did not start within {START_S:g} s")
        else:
            self._stop(worker)

    def _deadline(self, worker: Worker) -> float | None:
        """When patience with it ends: with its task, its start, its idleness."""
        if worker.killed_at_task is not None:
            return None
        if worker.state is WorkerState.STARTING:
            return worker.since + START_S
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
