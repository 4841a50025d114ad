"""Workers as the core sees them: what each has in hand, and the team of each dataset."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import Enum

from loaderd_server.core.jobs import Job


class WorkerState(Enum):
    """STARTING: forked, not heard of. READY: takes tasks. RETIRING: outgrew its memory, empties its
    hands. ENDING: asked to end."""

    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Given:
    """A task in a worker's hands."""

    task: int
    job: Job


class Worker:
    """One worker process."""

    __slots__ = (
        "busy_s", "dataset", "hands", "killed_at_task", "number", "pid", "since", "state",
        "tasks_done", "team",
    )  # fmt: skip

    def __init__(self, number: int, team: Team, now: float) -> None:
        self.number = number
        #: Its own even when the dataset is gone, and another of that name is there.
        self.team = team
        self.dataset = team.dataset
        self.pid = 0
        self.state = WorkerState.STARTING
        #: Tasks not answered; the first is in progress.
        self.hands: deque[Given] = deque()
        #: When it began the task in progress, or became idle, or was asked to start.
        self.since = now
        #: The task it was killed for, after its time was up.
        self.killed_at_task: int | None = None
        self.tasks_done = 0
        self.busy_s = 0.0

    @property
    def takes_more(self) -> bool:
        """Whether it may be given a task behind those in its hands."""
        return self.state is WorkerState.READY and self.killed_at_task is None

    @property
    def is_alone_with_one(self) -> bool:
        """Whether its task must have the worker to itself."""
        return bool(self.hands) and self.hands[-1].job.alone


class Team:
    """The workers of one dataset, and the jobs that wait for one."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset
        #: Whether there is a zygote to fork from.
        self.is_ready = False
        #: See DatasetReady.
        self.forks_locks = False
        #: Its dataset is iterable: jobs may be for one worker alone.
        self.iterates = False
        #: No stream draws from the dataset any more: its workers are about to end.
        self.is_gone = False
        self.workers: dict[int, Worker] = {}
        #: Workers with something in hand.
        self.busy = 0
        #: Workers that are STARTING.
        self.starting = 0
        #: ``Turn.tick`` when it was last given a task.
        self.served_tick = 0
        #: Workers that died since one last answered; those that had nothing in hand.
        self.deaths_in_row = 0
        self.idle_deaths_in_row = 0
        #: Workers died at their start once more: those who wait are to be told.
        self.is_hopeless = False
        #: No worker is started before this time.
        self.not_before = 0.0
        self._queue: list[tuple[int, int, Job]] = []
        self._submitted = 0

    @property
    def has_pressing(self) -> bool:
        """Whether a job waits that is not done just because a worker has nothing else to do."""
        first = self.first()
        return first is not None and not first.is_spare

    def submit(self, job: Job) -> None:
        """A job waits its turn; equals go in order of submission."""
        self._submitted += 1
        heapq.heappush(self._queue, (job.due, self._submitted, job))

    def first(self) -> Job | None:
        """The job that is due first."""
        return self._queue[0][2] if self._queue else None

    def take_first(self) -> Job:
        """The job that is due first; it waits no more."""
        return heapq.heappop(self._queue)[2]

    def take_all(self) -> list[Job]:
        """Every waiting job, in order; none waits any more."""
        return [heapq.heappop(self._queue)[2] for _ in range(len(self._queue))]

    def withdraw(self, job: Job) -> bool:
        """Takes back a job that waits; False where it does not."""
        left = [entry for entry in self._queue if entry[2] is not job]
        was_waiting = len(left) < len(self._queue)
        self._queue = left
        heapq.heapify(self._queue)
        return was_waiting

    def take_unwanted(self) -> list[Job]:
        """Every waiting job that nobody wants any more; none of them waits any more."""
        unwanted = [job for _due, _number, job in self._queue if not job.is_wanted]
        self._queue = [entry for entry in self._queue if entry[2].is_wanted]
        heapq.heapify(self._queue)
        return unwanted

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._queue)

    def living(self) -> int:
        """Workers that are there or coming, and not leaving."""
        gone = (WorkerState.ENDING, WorkerState.RETIRING)
        return sum(worker.state not in gone for worker in self.workers.values())
