"""Orders are asked for, made by workers, and dropped when no cursor is near."""

from __future__ import annotations

from collections.abc import Callable

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.jobs import AnyWorker, WorkerLoss
from loaderd_server.core.orders import Inverse, Order, fault_of
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.tasks import OrderDone, OrderTask, Result, TaskFailed
from loaderd_server.core.turn import Turn

_MOST_DEATHS = 3
#: How long an order for later may wait for batches that are due, in ticks.
_NO_HURRY_TICKS = 64
#: Orders on their way that nobody may want, before they are looked through.
_SPARE_ORDERS = 8

#: Called with the stream, the seed, the epoch and why it failed (None: it is there).
OrderListener = Callable[[Stream, int, int, Failure | None], None]


class OrderJob(AnyWorker):
    """The order of one epoch on its way."""

    def __init__(self, desk: OrderDesk, stream: Stream, seed: int, epoch: int) -> None:
        self.desk = desk
        self.stream = stream
        self.seed = seed
        self.epoch = epoch
        self.dataset = stream.settings.dataset
        self.due = 0
        self.alone = False
        self.deaths = 0

    def __str__(self) -> str:
        return f"order epoch {self.epoch} of {self.stream.name}"

    @property
    def is_wanted(self) -> bool:
        """See Job."""
        return self.stream.phase is not Phase.CLOSED

    def task(self, number: int) -> OrderTask:
        """See Job."""
        cache = self.stream.cache
        inverts = cache is not None and cache.looks_ahead
        return OrderTask(number, self.dataset, self.stream.name, self.seed, self.epoch, inverts)

    def answered(self, result: Result) -> None:
        """See Job."""
        if isinstance(result, OrderDone):
            self.desk.made(self, _order(result, self.stream))
        elif isinstance(result, TaskFailed) and result.failures:
            self.desk.failed(self, result.failures[0].failure)
        else:
            self.desk.failed(self, _failure(f"a worker answered with {type(result).__name__}"))

    def worker_lost(self, loss: WorkerLoss) -> None:
        """See Job."""
        self.deaths += 1
        self.alone = True
        if self.deaths < _MOST_DEATHS and self.is_wanted:
            self.desk.submit(self)
            return
        text = f"it ended its worker {self.deaths} times ({loss.where}, {loss.how})"
        self.desk.failed(self, _failure(text, loss.where))

    def abandoned(self, text: str) -> None:
        """See Job."""
        self.desk.failed(self, _failure(text))


class OrderDesk:
    """Keeps each stream's OrderBook."""

    def __init__(self, turn: Turn, dispatcher: Dispatcher) -> None:
        self._turn = turn
        self._dispatcher = dispatcher
        #: Jobs that are not over, oldest first.
        self._jobs: list[OrderJob] = []
        #: Who is told; set when the core is wired.
        self.listener: OrderListener

    def ask(self, stream: Stream, seed: int, epoch: int, *, hurry: bool) -> None:
        """Has an order made, unless it is there or on its way."""
        key = (seed, epoch)
        if key in stream.orders.ready or key in stream.orders.asked:
            return
        self._withdraw_unwanted(stream)
        stream.orders.asked.add(key)
        job = OrderJob(self, stream, seed, epoch)
        job.due = self._turn.tick + (0 if hurry else _NO_HURRY_TICKS)
        self._jobs.append(job)
        self._dispatcher.submit(job)

    def _withdraw_unwanted(self, stream: Stream) -> None:
        """Whoever asks and leaves again and again must not fill the queue."""
        if len(stream.orders.asked) <= 2 * len(stream.cursors) + _SPARE_ORDERS:
            return
        near = stream.near_orders()
        for job in [job for job in self._jobs if job.stream is stream]:
            if (job.seed, job.epoch) not in near and self._dispatcher.withdraw(job):
                self._jobs.remove(job)
                stream.orders.asked.discard((job.seed, job.epoch))

    def submit(self, job: OrderJob) -> None:
        """Once more."""
        job.due = self._turn.tick
        self._dispatcher.submit(job)

    def made(self, job: OrderJob, order: Order) -> None:
        """An order came; it is looked at before anyone reads it."""
        fault = fault_of(order, job.stream.cutting) if job.is_wanted else "its stream is no more"
        if fault is not None:
            self.failed(job, _failure(fault))
            return
        job.stream.orders.ready[(job.seed, job.epoch)] = order
        self._over(job, None)

    def failed(self, job: OrderJob, failure: Failure) -> None:
        """There is no such order; who asks again has it tried again."""
        text = (
            f"the order of epoch {job.epoch} of stream {job.stream.name!r} could not be made: "
            f"{failure.class_name + ': ' if failure.class_name else ''}{failure.text}. Look at "
            f"streams.{job.stream.name}.sampler"
        )
        self._over(
            job,
            Failure(
                ErrorCode.STREAM_ENDED,
                -1,
                failure.class_name,
                text,
                failure.traceback,
                failure.where,
            ),
        )

    def _over(self, job: OrderJob, failure: Failure | None) -> None:
        self._jobs.remove(job)
        job.stream.orders.asked.discard((job.seed, job.epoch))
        self.listener(job.stream, job.seed, job.epoch, failure)


def _order(done: OrderDone, stream: Stream) -> Order:
    """The order, as far as a cache wants to know: one pass over its indices (10 ms for 10 million)."""
    inverse = None
    if done.inverse is not None:
        inverse = Inverse(done.inverse, repeats=done.occurrences is not None)
    fits = stream.cache is not None and len(done.indices) > 0
    fits = fits and int(done.indices.min()) >= 0 and int(done.indices.max()) < stream.samples
    return Order(done.indices, done.occurrences, done.cuts, inverse if fits else None, fits)


def _failure(text: str, where: str = "") -> Failure:
    return Failure(ErrorCode.STREAM_ENDED, -1, "", text, where=where)
