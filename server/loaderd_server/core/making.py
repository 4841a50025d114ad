"""Making a batch: from the choice of its slot to its bytes, its failure, or its emptiness."""

from __future__ import annotations

from collections.abc import Callable

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.batchjob import BatchJob
from loaderd_server.core.delivery import Delivery
from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.endless import Producer
from loaderd_server.core.failures import (
    culprit,
    deadly_batch,
    decide,
    failed_in,
    good_positions,
    substituted_positions,
    unexpected_answer,
)
from loaderd_server.core.jobs import WorkerLoss
from loaderd_server.core.poison import PoisonSearch
from loaderd_server.core.sequences import Emptied, Epoch, Failed
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.core.slots import Slot
from loaderd_server.core.streams import Stream
from loaderd_server.core.tasks import (
    BatchDone,
    ProbeDone,
    Result,
    RowFailure,
    TaskFailed,
)
from loaderd_server.core.turn import Turn
from loaderd_server.core.unitjob import UnitJob

#: Deaths of a worker on the same batch, after which the sample that does it is searched for.
_DEATHS_BEFORE_SEARCH = 2
#: How often a batch is sent again because its substitutes failed as well.
_MOST_SUBSTITUTIONS = 64


class Maker:
    """Carries batches through; the only one that fills slots."""

    def __init__(self, turn: Turn, dispatcher: Dispatcher, delivery: Delivery) -> None:
        self._turn = turn
        self._dispatcher = dispatcher
        self._delivery = delivery
        #: Finds a larger slot for a job that has none; set when the core is wired.
        self.seek_large_slot: Callable[[BatchJob], None]

    def begin(self, stream: Stream, epoch: Epoch, batch: int, slot: Slot) -> BatchJob:
        """A batch that has no entry starts to be made in this free slot; its job is to be given out."""
        job = self._job(stream, epoch, batch)
        epoch.entries[batch] = job
        job.due = self._turn.tick
        self._choose_positions(job)
        self.take_slot(job, slot)
        return job

    def _job(self, stream: Stream, epoch: Epoch, batch: int) -> BatchJob:
        producer = epoch.producer
        if producer is None:
            return BatchJob(self, stream, epoch, batch)
        assert batch == producer.take_next()
        return UnitJob(self, stream, epoch, batch, producer)

    def settle_empty(self, stream: Stream, epoch: Epoch, batch: int) -> bool:
        """Settles a batch that has no entry and no good sample: no worker is asked for it."""
        if not epoch.failed and len(epoch.view.positions(batch)):
            return False
        job = BatchJob(self, stream, epoch, batch)
        self._choose_positions(job)
        if len(job.positions):
            return False
        epoch.entries[batch] = job
        self._nothing_left(job)
        return True

    def take_slot(self, job: BatchJob, slot: Slot) -> None:
        """The job fills this slot, which is free."""
        job.stream.pool.fill(slot, job.epoch, job.batch)
        job.slot = slot

    def submit(self, job: BatchJob) -> None:
        """Gives the job to the dispatcher once more; it is due since it was begun."""
        self._dispatcher.submit(job)

    # --- results ----------------------------------------------------------------------------

    def done(self, job: BatchJob, result: BatchDone) -> None:
        """The worker wrote the batch."""
        failed = self._failed_positions(job, result.skipped)
        if job.stream.settings.on_error.policy is ErrorPolicy.RAISE and result.skipped:
            self.fail(job, result.skipped[0].failure)
            return
        verdict = decide(job.epoch, job.batch, failed) if failed else None
        if verdict is not None:
            self.fail(job, verdict)
        elif self._is_outdated(job, {position for position, _ in failed}):
            self._send_again(job)
        else:
            self._ready(job, result)

    def _is_outdated(self, job: BatchJob, reported: set[int]) -> bool:
        """Whether a row was decided as failed, by another batch that had it as its substitute."""
        failed = job.epoch.failed
        if not failed:
            return False
        return any(int(p) in failed and int(p) not in reported for p in job.positions)

    def _ready(self, job: BatchJob, result: BatchDone) -> None:
        stream, epoch, slot = job.stream, job.epoch, job.slot
        self._count(job, result)
        stream.overflow.saw(result.size_bytes)
        failed = failed_in(epoch, job.batch)
        remade = bool(epoch.decided[job.batch])
        if not epoch.decided[job.batch]:
            epoch.decided[job.batch] = 1
            epoch.samples_made += len(epoch.view.positions(job.batch))
        if result.rows == 0 or slot is None:
            self._give_slot_back(job)
            epoch.settle(job.batch, Emptied(failed))
        else:
            stream.pool.filled(slot, result, failed, remade=remade)
            epoch.settle(job.batch, slot)
        self._delivery.settled(epoch, job.batch)

    def _count(self, job: BatchJob, result: BatchDone) -> None:
        counts = job.stream.counts
        counts.made += 1
        counts.remade += job.epoch.decided[job.batch]
        counts.samples_loaded += result.rows
        counts.samples_skipped += len(result.skipped)
        counts.load_s += result.load_s
        counts.transform_s += result.transform_s
        counts.collate_s += result.collate_s

    def rows_failed(self, job: BatchJob, failures: tuple[RowFailure, ...]) -> None:
        """Exceptions ended the task."""
        whole = [f.failure for f in failures if not 0 <= f.row < len(job.positions)]
        if whole or not failures:
            self.fail(job, whole[0] if whole else unexpected_answer("an empty TaskFailed"))
        elif job.stream.settings.on_error.policy is ErrorPolicy.RAISE:
            self.fail(job, failures[0].failure)
        else:
            self._without(job, self._failed_positions(job, failures))

    def too_large(self, job: BatchJob, needed_bytes: int) -> None:
        """The slot is too small."""
        assert job.slot is not None
        job.needed_bytes = max(needed_bytes, job.slot.place.capacity_bytes + 1)
        self._give_slot_back(job)
        job.stream.overflow.saw(job.needed_bytes)
        self.seek_large_slot(job)

    @staticmethod
    def _failed_positions(
        job: BatchJob, failures: tuple[RowFailure, ...]
    ) -> list[tuple[int, Failure]]:
        rows = len(job.positions)
        return [(int(job.positions[f.row]), f.failure) for f in failures if 0 <= f.row < rows]

    def _without(self, job: BatchJob, failed: list[tuple[int, Failure]]) -> None:
        verdict = decide(job.epoch, job.batch, failed)
        if verdict is not None:
            self.fail(job, verdict)
        else:
            self._send_again(job)

    def _send_again(self, job: BatchJob) -> None:
        """With other rows, as samples were decided as failed; or it is over with the batch."""
        job.substitutions += 1
        job.deaths = 0
        job.alone = False
        self._choose_positions(job)
        if len(job.positions) == 0:
            self._nothing_left(job)
        elif job.substitutions > _MOST_SUBSTITUTIONS:
            text = (
                f"batch {job.batch} was sent {_MOST_SUBSTITUTIONS} times and samples still failed"
            )
            self.fail(job, _no_substitute(job, text))
        else:
            self.submit(job)

    def _nothing_left(self, job: BatchJob) -> None:
        substitutes = job.stream.settings.on_error.policy is ErrorPolicy.SUBSTITUTE
        if substitutes and len(job.epoch.view.positions(job.batch)):
            self.fail(job, _no_substitute(job, "every sample failed"))
        else:
            self._ready(job, BatchDone(0, 0, 0, b"", 0, 0))

    @staticmethod
    def _choose_positions(job: BatchJob) -> None:
        if job.stream.settings.on_error.policy is ErrorPolicy.SUBSTITUTE:
            job.positions = substituted_positions(job.epoch, job.batch)
        else:
            job.positions = good_positions(job.epoch, job.batch)

    # --- the end ----------------------------------------------------------------------------

    def fail(self, job: BatchJob, failure: Failure) -> None:
        """The batch cannot be made."""
        self._give_slot_back(job)
        job.stream.counts.failed += 1
        job.epoch.settle(job.batch, Failed(failure))
        self._delivery.settled(job.epoch, job.batch)

    def iterator_over(self, job: UnitJob, producer: Producer, units: int) -> None:
        """There is no such batch: its shard has ended."""
        self._give_slot_back(job)
        producer.ended(job.batch, units)
        job.epoch.forget(job.batch)
        self._delivery.look_again(job.epoch)

    def fail_next(self, epoch: Epoch, producer: Producer, text: str) -> None:
        """The next batch of an iterable dataset cannot be made by any worker."""
        batch = producer.take_next()
        epoch.settle(batch, Failed(Failure(ErrorCode.WORKER_DIED, -1, "", text)))
        epoch.sequence.stream.counts.failed += 1
        self._delivery.settled(epoch, batch)

    def fail_once(self, epoch: Epoch, batch: int, text: str) -> None:
        """Who waits for this batch is told; who comes later has it tried again."""
        epoch.settle(batch, Failed(Failure(ErrorCode.WORKER_DIED, -1, "", text)))
        epoch.sequence.stream.counts.failed += 1
        self._delivery.settled(epoch, batch)
        epoch.forget(batch)

    def drop(self, job: BatchJob) -> None:
        """Nobody wants it any more."""
        self._give_slot_back(job)
        job.epoch.forget(job.batch)
        if job.epoch.producer is not None and job.stream.is_open:
            self._delivery.look_again(job.epoch)

    def _give_slot_back(self, job: BatchJob) -> None:
        if job.slot is not None:
            job.stream.pool.free(job.slot)
            job.slot = None

    # --- workers that end -------------------------------------------------------------------

    def worker_lost(self, job: BatchJob, loss: WorkerLoss) -> None:
        """Its worker ended: once is an accident, twice is a reason to search."""
        if loss.with_zygote:
            job.zygote_losses += 1
            if job.zygote_losses == 1:
                self.submit(job)
                return
        job.deaths += 1
        job.alone = True
        if job.search is not None:
            job.search.died()
            self._search_on(job, loss)
        elif job.is_last_try:
            self.fail(job, deadly_batch(job.batch, job.deaths, loss))
        elif job.deaths < _DEATHS_BEFORE_SEARCH and (not loss.timed_out or loss.may_be_lock):
            self.submit(job)
        elif loss.timed_out and loss.row is not None and 0 <= loss.row < len(job.positions):
            self._found(job, loss.row, loss)
        elif loss.timed_out and job.stream.settings.on_error.policy is ErrorPolicy.RAISE:
            self.fail(job, deadly_batch(job.batch, job.deaths, loss))
        else:
            job.search = PoisonSearch(len(job.positions), loss.row)
            self.submit(job)

    def probed(self, job: BatchJob, result: Result) -> None:
        """The rows of a probe did their worker no harm (that they may raise is no matter here)."""
        assert job.search is not None
        if not isinstance(result, (ProbeDone, TaskFailed)):
            self.fail(job, unexpected_answer(type(result).__name__))
            return
        job.search.survived()
        if job.search.trying is not None:
            self.submit(job)
            return
        job.search = None
        job.is_last_try = True
        self.submit(job)

    def _search_on(self, job: BatchJob, loss: WorkerLoss) -> None:
        assert job.search is not None
        if job.search.culprit is None:
            self.submit(job)
            return
        row, job.search = job.search.culprit, None
        self._found(job, row, loss)

    def _found(self, job: BatchJob, row: int, loss: WorkerLoss) -> None:
        position = int(job.positions[row])
        index = int(job.epoch.view.indices[position])
        failure = culprit(job.stream.name, index, job.deaths, loss)
        if job.stream.settings.on_error.policy is ErrorPolicy.RAISE:
            self.fail(job, failure)
        else:
            self._without(job, [(position, failure)])


def _no_substitute(job: BatchJob, text: str) -> Failure:
    advice = f"see streams.{job.stream.name}.on_error"
    return Failure(
        ErrorCode.TOO_MANY_FAILURES, -1, "", f"{text} in epoch {job.epoch.number}; {advice}"
    )
