"""Opening a stream: its dataset, its first order, the size of a batch, its slots; or why it is closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from loaderd_protocol.arena import page_align
from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.actions import Severity, StreamClosed, StreamOpened
from loaderd_server.core.arenas import ArenaDesk, ArenaRequest, Purpose
from loaderd_server.core.credits import VIEWS
from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.events import DatasetReady
from loaderd_server.core.jobs import AnyWorker, WorkerLoss
from loaderd_server.core.lagging import Window
from loaderd_server.core.ordering import OrderDesk
from loaderd_server.core.orders import RankOrder
from loaderd_server.core.settings import ErrorPolicy, Lag, Mode
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.tasks import (
    BatchAddress,
    MeasureDone,
    MeasureIterateTask,
    MeasureTask,
    Result,
)
from loaderd_server.core.turn import Turn

#: Where no batch could be measured; larger batches get larger slots as they come.
_UNMEASURED_SLOT_BYTES = 1 << 20
#: Auto slots are enough for so many trainers with the usual prefetch, within the memory.
_TRAINERS = 4
_PREFETCH = 2
#: Room for batches a little larger than the measured one: longer strings, say.
_MOST_HEADROOM_BYTES = 64 * 1024
_MOST_DEATHS = 2


class MeasureJob(AnyWorker):
    """The first batch of a stream, made on the heap to learn its size; ``task_of`` numbers its task."""

    def __init__(
        self,
        opening: Opening,
        stream: Stream,
        task_of: Callable[[int], MeasureTask | MeasureIterateTask],
        due: int,
    ) -> None:
        self.opening = opening
        self.stream = stream
        self.dataset = stream.settings.dataset
        self.due = due
        self.alone = False
        self.deaths = 0
        self._task_of = task_of

    def __str__(self) -> str:
        return f"measure the first batch of {self.stream.name}"

    @property
    def is_wanted(self) -> bool:
        """See Job."""
        return self.stream.phase is not Phase.CLOSED

    def task(self, number: int) -> MeasureTask | MeasureIterateTask:
        """See Job."""
        return self._task_of(number)

    def answered(self, result: Result) -> None:
        """See Job."""
        self.opening.measured(
            self.stream, result.size_bytes if isinstance(result, MeasureDone) else 0
        )

    def worker_lost(self, loss: WorkerLoss) -> None:
        """See Job."""
        self.deaths += 1
        self.alone = True
        if loss.timed_out or self.deaths >= _MOST_DEATHS or not self.is_wanted:
            self.opening.measured(self.stream, 0)
        else:
            self.opening.submit_measure(self)

    def abandoned(self, text: str) -> None:
        """See Job."""
        self.opening.close(self.stream, Failure(ErrorCode.STREAM_ENDED, -1, "", text))


def _in_order(stream: Stream, view: RankOrder, number: int) -> MeasureTask:
    """The first batch of an order that has a sample."""
    settings = stream.settings
    batch = next(b for b in range(view.batches) if len(view.positions(b)))
    address = BatchAddress(stream.name, settings.seed, 0, batch, 0, 1)
    return MeasureTask(number, settings.dataset, address, *view.samples(view.positions(batch)))


def _iterated(stream: Stream, number: int) -> MeasureIterateTask:
    """The first batch of an iterable dataset."""
    settings = stream.settings
    address = BatchAddress(stream.name, settings.seed, 0, 0, 0, 1)
    return MeasureIterateTask(
        number, settings.dataset, address, 0, settings.shards, settings.batch_size or 1,
        settings.drop_last,
    )  # fmt: skip


def _fault_of_iterable(stream: Stream) -> str | None:
    settings = stream.settings
    head = f"dataset {settings.dataset!r} of stream {settings.name!r} is iterable"
    if settings.mode is not Mode.BROADCAST:
        return f"{head}: it can be served in mode broadcast only, not in {settings.mode.value}"
    if settings.batch_size is None:
        return f"{head}: set batch_size, as no batch sampler can choose its samples"
    if settings.on_error.policy is not ErrorPolicy.RAISE:
        return f"{head}: set on_error: raise, as after an exception its iterator has no next sample"
    return None


class Opening:
    """Moves streams from Phase to Phase."""

    def __init__(
        self, turn: Turn, dispatcher: Dispatcher, orders: OrderDesk, arenas: ArenaDesk, workers: int
    ) -> None:
        self._turn = turn
        self._dispatcher = dispatcher
        self._orders = orders
        self._arenas = arenas
        self._least_slots = workers + 2
        #: Told when a stream's trainers can be served, or never will be; set when wired.
        self.opened: Callable[[Stream], None]
        self.closed: Callable[[Stream], None]
        #: Whether memory is about to be given back, so that this request is made again then; set
        #: when wired.
        self.memory_may_come: Callable[[ArenaRequest, str], bool]

    def check(self, stream: Stream) -> None:
        """Closes a stream whose settings cannot work."""
        slots = stream.settings.slots
        if slots is not None and slots < self._least_slots:
            self._close_with(
                stream,
                f"streams.{stream.name}.slots = {slots}, but {self._least_slots} are needed: one for "
                f"each worker, one to make the next batch in and one for a trainer. Raise slots or "
                f"lower workers.count",
            )

    def dataset_ready(self, stream: Stream, event: DatasetReady) -> None:
        """The dataset is built, for the first time or again."""
        if stream.phase is Phase.CLOSED:
            return
        length, is_iterable = event.length, event.is_iterable
        if event.own_collate:
            stream.uncuttable = "its dataset collates by itself"
        stream.reads_ahead = event.reads_ahead
        fault = _fault_of_iterable(stream) if is_iterable else None
        if length is None and not is_iterable:
            fault = (
                f"dataset {stream.settings.dataset!r} has no length: give it __len__, or __iter__ "
                f"alone to have it iterated"
            )
        if fault is not None:
            self._close_with(stream, fault)
            return
        stream.samples = -1 if is_iterable or length is None else length
        stream.is_iterable = is_iterable
        if is_iterable:
            self._iterable_ready(stream)
            return
        if stream.phase is Phase.WAITING:
            stream.phase = Phase.ORDERING
            self._orders.ask(stream, stream.settings.seed, 0, hurry=True)

    def _iterable_ready(self, stream: Stream) -> None:
        """There is no order to wait for."""
        if stream.phase is not Phase.WAITING:
            return
        stream.uncuttable = "its dataset is iterable"
        if stream.slot_bytes:
            self._allocate(stream, stream.slot_bytes)
            return
        stream.phase = Phase.MEASURING
        self.submit_measure(MeasureJob(self, stream, partial(_iterated, stream), self._turn.tick))

    def order_made(self, stream: Stream, failure: Failure | None) -> None:
        """The first order is there, or will never be."""
        if failure is not None:
            self.close(stream, failure)
            return
        view = RankOrder(stream.orders.ready[(stream.settings.seed, 0)], stream.cutting, 0, 1)
        if stream.slot_bytes or not view.length or not view.batches:
            self._allocate(stream, stream.slot_bytes or _UNMEASURED_SLOT_BYTES)
            return
        stream.phase = Phase.MEASURING
        self.submit_measure(
            MeasureJob(self, stream, partial(_in_order, stream, view), self._turn.tick)
        )

    def submit_measure(self, job: MeasureJob) -> None:
        """Gives the measuring to a worker."""
        self._dispatcher.submit(job)

    def measured(self, stream: Stream, size_bytes: int) -> None:
        """The first batch needs so much; 0 where that could not be found out."""
        if stream.phase is not Phase.MEASURING:
            return
        if size_bytes <= 0:
            text = (
                f"stream {stream.name!r}: its first batch could not be measured; slots of "
                f"{_UNMEASURED_SLOT_BYTES} bytes, larger ones as they are needed"
            )
            self._turn.log(Severity.WARNING, text)
            self._allocate(stream, _UNMEASURED_SLOT_BYTES)
            return
        headroom = min(max(size_bytes // 8, 4096), _MOST_HEADROOM_BYTES)
        self._allocate(stream, size_bytes + headroom)

    def _allocate(self, stream: Stream, slot_bytes: int) -> None:
        stream.phase = Phase.ALLOCATING
        stream.slot_bytes = page_align(slot_bytes)
        count = stream.settings.slots
        if count is None:
            enough = self._least_slots - 1 + _TRAINERS * (_PREFETCH + VIEWS)
            enough += stream.settings.sharing.window or 0
            affordable = stream.share_bytes // stream.slot_bytes
            count = max(self._least_slots, min(enough, affordable))
        self._arenas.ask(ArenaRequest(stream, stream.slot_bytes, count, Purpose.OPENING))

    def arena_ready(self, stream: Stream) -> None:
        """The stream's slots exist."""
        if stream.phase is not Phase.ALLOCATING:
            return
        stream.phase = Phase.OPEN
        if stream.settings.sharing.lag is Lag.WAIT or stream.is_iterable:
            stream.window = Window(self._window_size(stream), stream.settings.sharing.patience_s)
        self._turn.do(StreamOpened(stream.name, stream.slot_bytes, stream.pool.base_count))
        self.opened(stream)

    def _window_size(self, stream: Stream) -> int:
        """What the user set; of an iterable dataset no more than half of the slots can keep.

        Its batches cannot be made again, so their slots are not taken for others: with a larger window
        all could be kept for one that does not come, and nobody's patience with it would begin.
        """
        wished, half = stream.settings.sharing.window, max(1, stream.pool.base_count // 2)
        if wished is None or not stream.is_iterable or wished <= half:
            return wished or half
        self._turn.log(
            Severity.WARNING,
            f"stream {stream.name!r}: window is {half} instead of {wished}, half of its "
            f"{stream.pool.base_count} slots, as batches of an iterable dataset are kept in slots for "
            f"the last trainer; raise streams.{stream.name}.slots to {2 * wished}, or memory",
        )
        return half

    def arena_refused(self, request: ArenaRequest, text: str) -> None:
        """Fewer slots are tried, down to the least that can work; a number the user set is kept."""
        stream = request.stream
        if stream.phase is not Phase.ALLOCATING:
            return
        fewer = max(self._least_slots, request.count // 2)
        if stream.settings.slots is None and fewer < request.count:
            self._arenas.ask(ArenaRequest(stream, stream.slot_bytes, fewer, Purpose.OPENING))
            return
        if self.memory_may_come(request, text):
            return
        self._close_with(
            stream,
            f"no memory for {request.count} slots of {request.slot_bytes} bytes for stream "
            f"{stream.name!r} ({self._least_slots} is the least with these workers): {text}",
        )

    def close(self, stream: Stream, failure: Failure) -> None:
        """The stream cannot be served, from now on and for good."""
        if stream.phase is Phase.CLOSED:
            return
        stream.phase = Phase.CLOSED
        stream.failure = failure
        self._turn.do(StreamClosed(stream.name, failure.text))
        self.closed(stream)

    def _close_with(self, stream: Stream, text: str) -> None:
        self.close(stream, Failure(ErrorCode.STREAM_ENDED, -1, "", text))
