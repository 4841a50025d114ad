"""Subscriptions: what trainers ask for is checked, cursors are placed, moved and ended."""

from __future__ import annotations

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_protocol.messages import (
    EpochStarted,
    Leave,
    Refused,
    Release,
    Start,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from loaderd_server.core.actions import Log, Severity, Tell
from loaderd_server.core.admission import Admission
from loaderd_server.core.credits import MOST_PREFETCH, VIEWS
from loaderd_server.core.delivery import Delivery
from loaderd_server.core.leases import MOST_CURSORS, Lease
from loaderd_server.core.ordering import OrderDesk
from loaderd_server.core.orders import RankOrder
from loaderd_server.core.sequences import Cursor, CursorState
from loaderd_server.core.settings import Mode
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.turn import Turn

MOST_EPOCH = 2**31 - 1
#: DistributedSampler pads an order to a multiple of it: a wrong one must not fill the memory.
MOST_WORLD_SIZE = 65536
_MOST_COMPLAINTS = 3


class Subscriptions:
    """Owns cursors, from Subscribe to Unsubscribed, Refused or the lease's end."""

    def __init__(
        self,
        turn: Turn,
        streams: dict[str, Stream],
        leases: dict[int, Lease],
        orders: OrderDesk,
        admission: Admission,
        delivery: Delivery,
    ) -> None:
        self._turn = turn
        self._streams = streams
        self._leases = leases
        self._orders = orders
        self._admission = admission
        admission.admitted = self._subscribed
        admission.refused = self._refuse
        self._delivery = delivery

    # --- what trainers say ------------------------------------------------------------------

    def subscribe(self, lease: Lease, asked: Subscribe) -> None:
        """Makes a cursor, or refuses it with the reason."""
        if asked.sub in lease.cursors:
            self._complain(lease, f"subscribed twice as sub {asked.sub}")
            return
        stream = self._streams.get(asked.stream)
        refusal = self._refusal(lease, asked, stream)
        if refusal is not None or stream is None:
            code, text = refusal or (ErrorCode.UNKNOWN_STREAM, "")
            self._turn.do(Tell(lease.number, Refused(asked.sub, code, text)))
            return
        rank, world_size = asked.rank, asked.world_size
        if stream.settings.mode is Mode.BROADCAST:
            rank, world_size = 0, 1
        sequence = stream.sequence(rank, world_size)
        sequence.cursors += 1
        want = min(asked.prefetch, MOST_PREFETCH) + VIEWS
        cursor = Cursor(lease.number, asked.sub, sequence, want, asked.epoch)
        lease.cursors[asked.sub] = cursor
        stream.cursors.append(cursor)
        if stream.is_open:
            self._admit(stream, cursor)

    def start(self, lease: Lease, asked: Start) -> None:
        """Moves a cursor; what it was told of before stays in its hands until released."""
        cursor = lease.cursors.get(asked.sub)
        if cursor is None:
            self._complain(lease, f"started sub {asked.sub}, which it has not")
            return
        last = cursor.start.iteration if cursor.start is not None else cursor.iteration
        if asked.iteration <= last:
            self._complain(lease, f"started iteration {asked.iteration} after {last}")
            return
        if not 0 <= asked.epoch <= MOST_EPOCH or asked.batch < 0:
            self._refuse(
                cursor, _bad_start(asked.epoch, asked.batch, "epoch and batch count from 0")
            )
            return
        cursor.start = asked
        if cursor.state is not CursorState.ASKED:
            self._begin(cursor)

    def unsubscribe(self, lease: Lease, asked: Unsubscribe) -> None:
        """Ends a cursor; what it has in hand stays the trainer's until released."""
        cursor = lease.cursors.get(asked.sub)
        if cursor is None:
            self._complain(lease, f"unsubscribed sub {asked.sub}, which it has not")
            return
        self._end(cursor)
        self._turn.do(Tell(lease.number, Unsubscribed(asked.sub)))
        self._admission.settle(cursor.sequence.stream)

    def release(self, lease: Lease, given: Release) -> None:
        """One announcement comes back."""
        loan = lease.give_back(given.sub, given.slot, given.generation)
        if loan is None:
            self._complain(lease, f"released what it does not hold: {given}")
            return
        cursor, slot = loan
        self._delivery.take_back(cursor, slot)
        self._delivery.advance(cursor)
        if cursor.sequence.stream.ledger.is_tight:
            self._admission.settle(cursor.sequence.stream)

    def lease_ended(self, lease: Lease) -> None:
        """The trainer is gone: all it held is free."""
        self._take_leave(lease, ())

    def leave(self, lease: Lease, asked: Leave) -> None:
        """The trainer takes no more; what its views show stays its own until released."""
        lease.has_left = True
        self._take_leave(lease, asked.kept)

    def _take_leave(self, lease: Lease, kept: tuple[Release, ...]) -> None:
        streams = {cursor.sequence.stream.name: cursor for cursor in lease.cursors.values()}
        for cursor in tuple(lease.cursors.values()):
            self._end(cursor)
        for cursor, slot in lease.take_all((r.sub, r.slot, r.generation) for r in kept):
            self._delivery.take_back(cursor, slot)
            streams[cursor.sequence.stream.name] = cursor
        for cursor in streams.values():
            self._admission.settle(cursor.sequence.stream)

    # --- what becomes of streams ------------------------------------------------------------

    def stream_opened(self, stream: Stream) -> None:
        """Those who came early are served."""
        for cursor in tuple(stream.cursors):
            if cursor.state is CursorState.ASKED:
                self._admit(stream, cursor)

    def stream_closed(self, stream: Stream) -> None:
        """Every cursor ends with the reason."""
        for cursor in tuple(stream.cursors):
            self._refuse(cursor, _ended_text(stream), ErrorCode.STREAM_ENDED)

    def order_made(
        self, stream: Stream, epoch: int, world_size: int, failure: Failure | None
    ) -> None:
        """Those who waited for this order go on, or end with the reason."""
        for cursor in tuple(stream.cursors):
            world = stream.order_world(cursor.sequence.world_size)
            if cursor.awaits != epoch or world != world_size:
                continue
            cursor.awaits = None
            if failure is not None:
                self._refuse(cursor, _with_traceback(failure), ErrorCode.STREAM_ENDED)
            elif cursor.state is CursorState.ASKED:
                self._admit(stream, cursor)
            else:
                self._begin(cursor)
        stream.prune()

    # --- the life of a cursor ---------------------------------------------------------------

    def _admit(self, stream: Stream, cursor: Cursor) -> None:
        """Once the order it named is there, it waits for credits, often for no time."""
        if not self._has_order(cursor, cursor.asked_epoch):
            return
        self._admission.join(stream, cursor)

    def _subscribed(self, stream: Stream, cursor: Cursor) -> None:
        cursor.state = CursorState.IDLE
        settings = stream.settings
        message = Subscribed(
            cursor.sub,
            settings.mode.value,
            stream.samples,
            self._view(stream, cursor, cursor.asked_epoch).batches,
            settings.batch_size or 0,
            settings.drop_last,
            cursor.grant,
        )
        self._turn.do(Tell(cursor.lease, message))
        if cursor.start is not None:
            self._begin(cursor)

    def _has_order(self, cursor: Cursor, epoch: int) -> bool:
        """Whether the order of that epoch is there; else it is asked for, and the cursor waits."""
        stream = cursor.sequence.stream
        world = stream.order_world(cursor.sequence.world_size)
        if epoch in cursor.sequence.epochs or (epoch, world) in stream.orders.ready:
            cursor.awaits = None
            return True
        cursor.awaits = epoch
        self._orders.ask(stream, epoch, world, hurry=True)
        return False

    @staticmethod
    def _view(stream: Stream, cursor: Cursor, epoch: int) -> RankOrder:
        sequence = cursor.sequence
        known = sequence.epochs.get(epoch)
        if known is not None:
            return known.view
        order = stream.orders.ready[(epoch, stream.order_world(sequence.world_size))]
        return RankOrder(order, stream.cutting, sequence.rank, sequence.world_size)

    def _begin(self, cursor: Cursor) -> None:
        """Carries out the cursor's last Start, now or when the order is there."""
        asked, stream = cursor.start, cursor.sequence.stream
        if asked is None:
            return
        cursor.leave()
        cursor.state = CursorState.RUNNING
        cursor.asked_epoch = asked.epoch
        if not self._has_order(cursor, asked.epoch):
            return
        view = self._view(stream, cursor, asked.epoch)
        if asked.batch > view.batches:
            why = f"the epoch has {view.batches} batches"
            self._refuse(cursor, _bad_start(asked.epoch, asked.batch, why))
            return
        self._place(cursor, asked, view)
        world = stream.order_world(cursor.sequence.world_size)
        self._orders.ask(stream, asked.epoch + 1, world, hurry=False)
        stream.prune()

    def _place(self, cursor: Cursor, asked: Start, view: RankOrder) -> None:
        cursor.start = None
        cursor.iteration = asked.iteration
        cursor.served_tick = self._turn.tick
        cursor.place(cursor.sequence.epoch(asked.epoch, view), asked.batch)
        message = EpochStarted(asked.sub, asked.iteration, asked.epoch, view.batches)
        self._turn.do(Tell(cursor.lease, message))
        self._delivery.advance(cursor)

    def _refuse(self, cursor: Cursor, text: str, code: ErrorCode = ErrorCode.REFUSED) -> None:
        """Ends a cursor with a reason."""
        self._end(cursor)
        self._turn.do(Tell(cursor.lease, Refused(cursor.sub, code, text)))
        self._admission.settle(cursor.sequence.stream)

    def _end(self, cursor: Cursor) -> None:
        stream = cursor.sequence.stream
        cursor.leave()
        cursor.state = CursorState.ENDED
        cursor.awaits = None
        cursor.sequence.cursors -= 1
        stream.cursors.remove(cursor)
        stream.ledger.leave(cursor)
        self._leases[cursor.lease].cursors.pop(cursor.sub, None)
        stream.prune()

    # --- refusals ---------------------------------------------------------------------------

    def _refusal(
        self, lease: Lease, asked: Subscribe, stream: Stream | None
    ) -> tuple[ErrorCode, str] | None:
        if stream is None:
            there = ", ".join(repr(name) for name in self._streams) or "none"
            return (
                ErrorCode.UNKNOWN_STREAM,
                f"there is no stream {asked.stream[:200]!r}; there are: {there}",
            )
        if stream.phase is Phase.CLOSED:
            return ErrorCode.STREAM_ENDED, _ended_text(stream)
        text = self._fault(lease, asked, stream)
        return None if text is None else (ErrorCode.REFUSED, text)

    @staticmethod
    def _fault(lease: Lease, asked: Subscribe, stream: Stream) -> str | None:
        if len(lease.cursors) >= MOST_CURSORS:
            return f"this trainer has {MOST_CURSORS} subscriptions already; close some loaders"
        if asked.prefetch < 0:
            return f"prefetch is {asked.prefetch}; it must be at least 0"
        if not 0 <= asked.epoch <= MOST_EPOCH:
            return f"epoch is {asked.epoch}; it must be from 0 to {MOST_EPOCH}"
        if stream.settings.mode is Mode.BROADCAST:
            return None
        if not 1 <= asked.world_size <= MOST_WORLD_SIZE:
            return f"world_size is {asked.world_size}; it must be from 1 to {MOST_WORLD_SIZE}"
        if not 0 <= asked.rank < asked.world_size:
            return f"rank is {asked.rank}; with world_size {asked.world_size} it must be from 0 to {asked.world_size - 1}"
        return None

    def _complain(self, lease: Lease, what: str) -> None:
        """A message that makes no sense is logged, a few times a trainer, and ignored."""
        lease.complaints += 1
        if lease.complaints > _MOST_COMPLAINTS:
            return
        last = "; further ones are not logged" if lease.complaints == _MOST_COMPLAINTS else ""
        text = f"trainer {lease.number} {what}; ignored{last}"
        self._turn.do(Log(Severity.WARNING, text))


def _bad_start(epoch: int, batch: int, why: str) -> str:
    return f"cannot start at batch {batch} of epoch {epoch}: {why}"


def _ended_text(stream: Stream) -> str:
    assert stream.failure is not None
    return f"stream {stream.name!r} cannot be served: {_with_traceback(stream.failure)}"


def _with_traceback(failure: Failure) -> str:
    return f"{failure.text}\n{failure.traceback}" if failure.traceback else failure.text
