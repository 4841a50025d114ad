"""The core: ``handle(event, now) -> actions``. It wires the parts together and decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_protocol.messages import Done, Leave, Release, Start, Subscribe, Unsubscribe
from loaderd_server.core.actions import Action
from loaderd_server.core.admission import Admission
from loaderd_server.core.arenas import ArenaDesk, Purpose
from loaderd_server.core.caches import Caches
from loaderd_server.core.delivery import Delivery
from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.events import (
    ArenaReady,
    ArenaRefused,
    CacheCommitted,
    CachePunched,
    CacheRefused,
    DatasetFailed,
    DatasetLost,
    DatasetReady,
    Event,
    LeaseBegan,
    LeaseEnded,
    StreamsChanged,
    TimerFired,
    TrainerSaid,
    WorkerAnswered,
    WorkerEnded,
    WorkerKept,
    WorkerStarted,
)
from loaderd_server.core.growth import Growth
from loaderd_server.core.largeslots import LargeSlots
from loaderd_server.core.leases import Lease
from loaderd_server.core.making import Maker
from loaderd_server.core.opening import Opening
from loaderd_server.core.ordering import OrderDesk
from loaderd_server.core.reloading import Parts, Reloading
from loaderd_server.core.scheduler import Scheduler
from loaderd_server.core.settings import CoreSettings
from loaderd_server.core.starting import Starting
from loaderd_server.core.status import CoreStatus, status_of
from loaderd_server.core.streams import Stream
from loaderd_server.core.subscriptions import Subscriptions
from loaderd_server.core.turn import Turn


class Core:
    """The daemon's decisions. The same events at the same times lead to the same actions.

    It raises for nothing that a trainer or a worker says. Not thread-safe: one loop owns it.
    """

    def __init__(self, settings: CoreSettings) -> None:
        workers = settings.workers.count
        share_bytes = settings.slots_bytes // max(1, len(settings.streams))
        turn = self._turn = Turn()
        self._leases: dict[int, Lease] = {}
        self._streams = {s.name: Stream(s, workers, share_bytes) for s in settings.streams}
        self._dispatcher = Dispatcher(settings.workers, turn)
        self._caches = Caches(turn, self._dispatcher, workers, settings.caches, self._of_dataset)
        for stream in self._streams.values():
            self._dispatcher.add_dataset(stream.settings.dataset)
            stream.has_room = self._dispatcher.has_room
            stream.cache = self._caches.by_dataset.get(stream.settings.dataset)
        self._arenas = ArenaDesk(turn)
        delivery = self._delivery = Delivery(turn, self._leases)
        maker = Maker(turn, self._dispatcher, delivery)
        self._large = LargeSlots(turn, self._arenas, maker)
        maker.seek_large_slot = self._large.seek
        self._scheduler = Scheduler(self._streams.values(), maker, turn)
        orders = OrderDesk(turn, self._dispatcher)
        orders.listener = self._order_made
        self._opening = Opening(turn, self._dispatcher, orders, self._arenas, workers)
        self._growth = Growth(turn, self._arenas)
        self._admission = Admission(turn, self._growth, delivery)
        self._starting = Starting(turn, orders, delivery)
        self._subscriptions = Subscriptions(
            turn, self._streams, self._leases, self._starting, self._admission, delivery
        )
        self._opening.opened = self._subscriptions.stream_opened
        self._opening.closed = self._subscriptions.stream_closed
        self._caches.go_on = self._open_streams
        self._caches.close = self._opening.close
        self._reloading = Reloading(
            turn,
            settings,
            self._streams,
            Parts(
                self._dispatcher,
                self._scheduler,
                self._arenas,
                self._opening,
                self._subscriptions,
                self._large,
                self._caches,
            ),
        )
        self._routes = self._event_routes()
        self._said = self._message_routes()

    def _event_routes(self) -> dict[type, Callable[[Any], None]]:
        return {
            TrainerSaid: self._trainer_said,
            WorkerAnswered: self._worker_answered,
            LeaseBegan: self._lease_began,
            LeaseEnded: self._lease_ended,
            DatasetReady: self._dataset_ready,
            DatasetFailed: self._dataset_failed,
            DatasetLost: self._dataset_lost,
            WorkerStarted: self._worker_started,
            WorkerEnded: self._worker_ended,
            ArenaReady: self._arena_ready,
            ArenaRefused: self._arena_refused,
            StreamsChanged: self._reloading.streams_changed,
            CacheCommitted: self._caches.committed,
            CacheRefused: self._caches.refused,
            CachePunched: self._caches.punched,
            WorkerKept: self._caches.kept,
            TimerFired: self._timer_fired,
        }

    def _message_routes(self) -> dict[type, Callable[[Lease, Any], None]]:
        return {
            Release: self._subscriptions.release,
            Done: self._subscriptions.done,
            Leave: self._subscriptions.leave,
            Start: self._subscriptions.start,
            Subscribe: self._subscriptions.subscribe,
            Unsubscribe: self._subscriptions.unsubscribe,
        }

    def start(self, now: float) -> list[Action]:
        """What is to be done before the first event: streams that cannot work are closed."""
        self._turn.now = now
        for stream in self._streams.values():
            self._opening.check(stream)
        return self._turn.take()

    def handle(self, event: Event, now: float) -> list[Action]:
        """What the event leads to, in the order in which it is to be carried out.

        ``now`` is the shell's monotonic clock in seconds; it never goes back.
        """
        self._turn.now = now
        self._routes[type(event)](event)
        self._pump()
        self._reloading.drop_unused()
        return self._turn.take()

    def status(self) -> CoreStatus:
        """What it is doing, as of the last event."""
        return status_of(tuple(self._streams.values()), self._dispatcher, self._turn.now)

    def _pump(self) -> None:
        for stream in self._streams.values():
            stream.is_blocked = False
            if stream.overflow.waiting:
                self._large.serve(stream)
        self._caches.pump()
        self._dispatcher.pump(self._scheduler)

    # --- trainers ---------------------------------------------------------------------------

    def _trainer_said(self, event: TrainerSaid) -> None:
        lease = self._leases.get(event.lease)
        if lease is None:  # its end was quicker than its last words
            return
        if not lease.has_left or isinstance(event.message, Release):
            self._said[type(event.message)](lease, event.message)

    def _lease_began(self, event: LeaseBegan) -> None:
        self._leases.setdefault(event.lease, Lease(event.lease))

    def _lease_ended(self, event: LeaseEnded) -> None:
        lease = self._leases.get(event.lease)
        if lease is not None:
            self._subscriptions.lease_ended(lease)
            del self._leases[event.lease]

    # --- datasets and workers ---------------------------------------------------------------

    def _of_dataset(self, dataset: str) -> list[Stream]:
        return [s for s in self._streams.values() if s.settings.dataset == dataset]

    def _dataset_ready(self, event: DatasetReady) -> None:
        streams = self._of_dataset(event.dataset)
        if streams:
            self._dispatcher.dataset_ready(
                event.dataset, forks_locks=event.forks_locks, iterates=event.is_iterable
            )
            self._reloading.dataset_ready(event)
            self._caches.dataset_ready(event)

    def _open_streams(self, event: DatasetReady) -> None:
        for stream in self._of_dataset(event.dataset):
            self._opening.dataset_ready(stream, event)

    def _dataset_failed(self, event: DatasetFailed) -> None:
        streams = self._of_dataset(event.dataset)
        text = f"dataset {event.dataset!r} could not be built: {event.failure.text}"
        failure = Failure(
            ErrorCode.STREAM_ENDED,
            -1,
            event.failure.class_name,
            text,
            event.failure.traceback,
            event.failure.where,
        )
        for stream in streams:
            self._opening.close(stream, failure)
        if streams:
            self._dispatcher.dataset_failed(event.dataset, text)
            self._reloading.dataset_failed(event.dataset, failure)

    def _dataset_lost(self, event: DatasetLost) -> None:
        if self._of_dataset(event.dataset):
            self._caches.dataset_lost(event.dataset)
            self._dispatcher.dataset_lost(event.dataset, event.text)

    def _worker_started(self, event: WorkerStarted) -> None:
        self._dispatcher.started(event.worker, event.pid)

    def _worker_answered(self, event: WorkerAnswered) -> None:
        self._dispatcher.answered(event.worker, event.result, event.rss_growth_bytes)

    def _worker_ended(self, event: WorkerEnded) -> None:
        self._caches.worker_ended(event.worker)
        self._dispatcher.ended(event.worker, event.how, event.row)

    def _order_made(self, stream: Stream, seed: int, epoch: int, failure: Failure | None) -> None:
        if stream.is_open:
            self._subscriptions.order_made(stream, seed, epoch, failure)
        elif (seed, epoch) == (stream.settings.seed, 0):
            self._opening.order_made(stream, failure)

    # --- arenas and time --------------------------------------------------------------------

    def _arena_ready(self, event: ArenaReady) -> None:
        request = self._arenas.ready(event.arena)
        if request is None:
            return
        stream = request.stream
        if request.purpose is Purpose.OPENING:
            self._opening.arena_ready(stream)
        elif request.purpose is Purpose.CREDITS:
            self._growth.ready(stream)
            self._admission.settle(stream)
        else:
            self._large.arena_ready(stream)

    def _arena_refused(self, event: ArenaRefused) -> None:
        request = self._arenas.refused(event.arena)
        if request is None:
            return
        stream = request.stream
        if request.purpose is Purpose.OPENING:
            self._opening.arena_refused(request, event.text)
        elif request.purpose is Purpose.CREDITS:
            self._growth.refused(stream, event.text)
            self._admission.settle(stream)
        else:
            self._large.arena_refused(request, event.text)

    def _timer_fired(self, event: TimerFired) -> None:
        self._turn.timer_fired()
        self._dispatcher.timer_fired()
        for stream in self._streams.values():
            self._admission.timer_fired(stream)
            self._starting.timer_fired(stream)
            self._delivery.timer_fired(stream)
            self._large.timer_fired(stream)
