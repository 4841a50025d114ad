"""What the dispatcher needs to know of work: a job is done by one task after another until it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from loaderd_server.core.tasks import Result, Task


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """How the worker ended that was at a job."""

    worker: int
    pid: int
    #: "was killed by signal 9 (SIGKILL)"
    how: str
    #: The row it had begun last, or None.
    row: int | None
    timed_out: bool
    #: Its zygote died, and every worker with it: likely not this job's doing.
    with_zygote: bool
    #: It timed out at its first task, and may have inherited a lock: so may that.
    may_be_lock: bool = False

    @property
    def where(self) -> str:
        """As ``Failure.where`` has it."""
        return f"worker {self.worker}, pid {self.pid}"


class AnyWorker:
    """What most jobs have in common: any worker can do them, in the usual time."""

    __slots__ = ()

    @property
    def only_worker(self) -> int | None:
        """See Job."""
        return None

    @property
    def is_unlimited(self) -> bool:
        """See Job."""
        return False

    @property
    def is_spare(self) -> bool:
        """See Job."""
        return False

    def given_to(self, worker: int) -> None:
        """See Job."""


class Job(Protocol):
    """Work for a dataset's workers. One task of it is out at a time."""

    dataset: str
    #: ``Turn.tick`` by which it should be given out; the lowest goes first.
    due: int
    #: Give it to a worker with nothing in hand, and nothing more to that worker meanwhile: it may
    #: end its worker.
    alone: bool

    @property
    def only_worker(self) -> int | None:
        """The worker that it must be given to, as that one has what it needs; None for any."""

    @property
    def is_unlimited(self) -> bool:
        """Whether it may take longer than ``timeout_s``."""

    @property
    def is_spare(self) -> bool:
        """Whether it is given only to a worker with nothing in hand, as nobody waits for it."""

    def given_to(self, worker: int) -> None:
        """This worker gets its task."""

    @property
    def is_wanted(self) -> bool:
        """Whether its stream is still there."""

    def task(self, number: int) -> Task:
        """The task to give now."""

    def answered(self, result: Result) -> None:
        """Its task is done; it may submit itself again."""

    def worker_lost(self, loss: WorkerLoss) -> None:
        """The worker ended while at its task; it may submit itself again."""

    def abandoned(self, text: str) -> None:
        """No worker will do it: the dataset's workers do not start, or the dataset is gone."""


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
