"""A batch on its way: what is known of it between the choice of its slot and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.comingsamples import NO_SAMPLES, coming
from loaderd_server.core.failures import unexpected_answer
from loaderd_server.core.jobs import AnyWorker, WorkerLoss
from loaderd_server.core.poison import PoisonSearch
from loaderd_server.core.sequences import Epoch, Pending
from loaderd_server.core.slots import Slot
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTask,
    BatchTooLarge,
    Cached,
    Indices,
    IterateTask,
    ProbeTask,
    Result,
    TaskFailed,
)

if TYPE_CHECKING:
    from loaderd_server.core.making import Maker


class BatchJob(Pending, AnyWorker):
    """One batch on its way. It owns its slot, which is FILLING, from the choice to the end."""

    __slots__ = (
        "alone", "batch", "dataset", "deaths", "due", "epoch", "is_last_try", "maker",
        "needed_bytes", "pinned", "positions", "search", "sent", "slot", "stream", "substitutions",
        "worker", "zygote_losses",
    )  # fmt: skip

    def __init__(self, maker: Maker, stream: Stream, epoch: Epoch, batch: int) -> None:
        self.maker = maker
        self.stream = stream
        self.dataset = stream.settings.dataset
        self.epoch = epoch
        self.batch = batch
        self.slot: Slot | None = None
        self.due = 0
        self.alone = False
        #: Positions of the rows, as sent.
        self.positions: Indices | range = range(0)
        self.needed_bytes = 0
        self.deaths = 0
        self.zygote_losses = 0
        self.search: PoisonSearch | None = None
        self.is_last_try = False
        self.substitutions = 0
        #: The worker that has it, the samples that it was sent, and those of them that it reads in the cache.
        self.worker = -1
        self.sent: Indices = NO_SAMPLES
        self.pinned: Indices | None = None

    def __str__(self) -> str:
        what = "search for the sample that ends workers in" if self.search is not None else "make"
        return f"{what} batch {self.batch} of epoch {self.epoch.number} of {self.stream.name}"

    @property
    def is_wanted(self) -> bool:
        """See Job."""
        return self.stream.phase is not Phase.CLOSED

    def task(self, number: int) -> BatchTask | ProbeTask | IterateTask:
        """The batch itself, or rows of it while the sample that ends workers is searched for."""
        sequence = self.epoch.sequence
        address = BatchAddress(
            self.stream.name,
            sequence.seed,
            self.epoch.number,
            self.batch,
            sequence.rank,
            sequence.world_size,
        )
        if self.search is not None and (rows := self.search.trying) is not None:
            positions = self.positions[rows.start : rows.stop]
            return ProbeTask(number, self.dataset, address, *self.epoch.view.samples(positions))
        assert self.slot is not None
        self.sent, occurrences = self.epoch.view.samples(self.positions)
        return BatchTask(
            number, self.dataset, address, self.sent, occurrences, self.slot.place,
            self._cached(), coming(self.stream, self.epoch.view, self.positions),
        )  # fmt: skip

    def given_to(self, worker: int) -> None:
        """See Job."""
        self.worker = worker

    # --- the cache --------------------------------------------------------------------------

    def _cached(self) -> Cached | None:
        """What of its samples is in the cache; nobody takes them away while they are read."""
        self._stop_reading()
        cache = self.stream.cache
        if cache is None or not cache.is_on or not self.epoch.view.fits:
            return None
        found, self.pinned = cache.read(self.sent)
        return found

    def _stop_reading(self) -> None:
        if self.pinned is not None and self.stream.cache is not None:
            self.stream.cache.over(self.pinned)
        self.pinned = None

    def _read(self, result: Result) -> None:
        """The task is over for the cache."""
        self._stop_reading()
        cache = self.stream.cache
        if cache is None or not isinstance(result, BatchDone):
            return
        for row in result.unread:
            cache.could_not_read(int(self.sent[row]))
        cache.made(result.rows, result.hits, result.disk_hits)
        if result.offers is not None:
            cache.offered(self.worker, result.task, self.sent, result.offers)

    # --- what becomes of it -----------------------------------------------------------------

    def answered(self, result: Result) -> None:
        """See Job."""
        self._read(result)
        if self.stream.phase is Phase.CLOSED:
            self.maker.drop(self)
        elif self.search is not None:
            self.maker.probed(self, result)
        elif isinstance(result, BatchDone):
            self.maker.done(self, result)
        elif isinstance(result, BatchTooLarge):
            self.maker.too_large(self, result.needed_bytes)
        elif isinstance(result, TaskFailed):
            self.maker.rows_failed(self, result.failures)
        else:
            self.maker.fail(self, unexpected_answer(type(result).__name__))

    def worker_lost(self, loss: WorkerLoss) -> None:
        """See Job."""
        self._stop_reading()
        if self.stream.phase is Phase.CLOSED:
            self.maker.drop(self)
        else:
            self.maker.worker_lost(self, loss)

    def abandoned(self, text: str) -> None:
        """See Job."""
        self._stop_reading()
        if self.stream.phase is Phase.CLOSED:
            self.maker.drop(self)
        else:
            self.maker.fail(self, Failure(ErrorCode.WORKER_DIED, -1, "", text))
