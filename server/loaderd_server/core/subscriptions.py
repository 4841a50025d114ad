"""Subscriptions: what trainers ask for is checked, cursors are placed, moved and ended."""

from __future__ import annotations

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_protocol.messages import (
    MOST_EPOCH,
    MOST_WORLD_SIZE,
    Done,
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
from loaderd_server.core.delivery import Delivery
from loaderd_server.core.leases import MOST_CURSORS, Lease
from loaderd_server.core.places import (
    cut_of,
    fault_of_cut,
    fault_of_sharing,
    fault_of_start,
    order_text,
    sequence_of,
    wanted_credits,
    why_uncuttable,
)
from loaderd_server.core.sequences import Cursor, CursorState
from loaderd_server.core.settings import Mode
from loaderd_server.core.starting import Starting, bad_start
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.turn import Turn

_MOST_COMPLAINTS = 3


class Subscriptions:
    """Owns cursors, from Subscribe to Unsubscribed, Refused or the lease's end."""

    def __init__(
        self,
        turn: Turn,
        streams: dict[str, Stream],
        leases: dict[int, Lease],
        starting: Starting,
        admission: Admission,
        delivery: Delivery,
    ) -> None:
        self._turn = turn
        self._streams = streams
        self._leases = leases
        self._starting = starting
        starting.refused = self._refuse
        self._admission = admission
        admission.admitted = self._subscribed
        admission.refused = self._refuse
        self._delivery = delivery
        delivery.fell_out = self._refuse

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
        sequence = sequence_of(stream, asked)
        sequence.cursors += 1
        cut = cut_of(stream, asked)
        want = wanted_credits(stream, asked.prefetch, cut)
        cursor = Cursor(lease.number, asked.sub, sequence, want, asked.epoch, cut)
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
        fault = fault_of_start(asked, cursor.sequence.stream.settings.mode)
        if fault is not None:
            self._refuse(cursor, bad_start(asked, fault))
            return
        cursor.start = asked
        if cursor.state is not CursorState.ASKED:
            self._starting.begin(cursor)

    def done(self, lease: Lease, said: Done) -> None:
        """The trainer is done with what a queue gave it, up to there."""
        cursor = lease.cursors.get(said.sub)
        if cursor is None or said.count < 0:
            self._complain(lease, f"is done with {said}, which it was not given")
        elif cursor.start is not None and cursor.start.iteration == said.iteration:
            cursor.start = None if said.leaves else cursor.start
        elif said.iteration == cursor.iteration and said.leaves:
            self._delivery.leave(cursor, done=said.count)
        elif said.iteration == cursor.iteration:
            self._delivery.done(cursor, said.count)

    def unsubscribe(self, lease: Lease, asked: Unsubscribe) -> None:
        """Ends a cursor; what it has in hand stays the trainer's until released."""
        cursor = lease.cursors.get(asked.sub)
        if cursor is None:
            self._complain(lease, f"unsubscribed sub {asked.sub}, which it has not")
            return
        self._delivery.leave(cursor, done=cursor.handed.done)
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
        for cursor in tuple(lease.cursors.values()):
            counts = [d.count for d in asked.done if (d.sub, d.iteration) == _where(cursor)]
            self._delivery.leave(cursor, done=max(counts, default=0))
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

    def order_made(self, stream: Stream, seed: int, epoch: int, failure: Failure | None) -> None:
        """Those who waited for this order go on, or end with the reason."""
        for cursor in tuple(stream.cursors):
            if cursor.awaits != epoch or cursor.sequence.seed != seed:
                continue
            cursor.awaits = None
            if failure is not None:
                self._refuse(cursor, _with_traceback(failure), ErrorCode.STREAM_ENDED)
            elif cursor.state is CursorState.ASKED:
                self._admit(stream, cursor)
            else:
                self._starting.begin(cursor)
        stream.prune()

    # --- the life of a cursor ---------------------------------------------------------------

    def _admit(self, stream: Stream, cursor: Cursor) -> None:
        """Once the order it named is there, it waits for credits, often for no time."""
        fault = fault_of_cut(stream, cursor.cut)
        if fault is not None:  # who came before the dataset was built could not be told
            self._refuse(cursor, fault)
            return
        if not self._starting.has_order(cursor, cursor.asked_epoch):
            return
        self._admission.join(stream, cursor)

    def _subscribed(self, stream: Stream, cursor: Cursor) -> None:
        cursor.state = CursorState.IDLE
        settings = stream.settings
        view = self._starting.view(stream, cursor, cursor.asked_epoch)
        message = Subscribed(
            cursor.sub,
            settings.mode.value,
            stream.samples,
            -1
            if stream.is_iterable
            else view.end(cursor.cut.batch_size, drop_last=cursor.cut.drop_last),
            settings.batch_size or 0,
            cursor.cut.drop_last,
            cursor.grant,
            view.length,
            order_text(cursor.sequence),
            why_uncuttable(stream),
            settings.shards if stream.is_iterable else 0,
        )
        self._turn.do(Tell(cursor.lease, message))
        if cursor.start is not None:
            self._starting.begin(cursor)

    def _refuse(self, cursor: Cursor, text: str, code: ErrorCode = ErrorCode.REFUSED) -> None:
        """Ends a cursor with a reason."""
        self._end(cursor)
        self._turn.do(Tell(cursor.lease, Refused(cursor.sub, code, text)))
        self._admission.settle(cursor.sequence.stream)

    def _end(self, cursor: Cursor) -> None:
        stream = cursor.sequence.stream
        self._delivery.leave(cursor, done=None)
        cursor.state = CursorState.ENDED
        cursor.awaits = None
        cursor.sequence.cursors -= 1
        stream.cursors.remove(cursor)
        stream.ledger.leave(cursor)
        self._leases[cursor.lease].cursors.pop(cursor.sub, None)
        if not stream.cursors:
            stream.gate.close()
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
        fault = fault_of_sharing(asked, stream)
        if fault is not None or stream.settings.mode is not Mode.SHARD:
            return fault
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


def _where(cursor: Cursor) -> tuple[int, int]:
    return cursor.sub, cursor.iteration


def _ended_text(stream: Stream) -> str:
    assert stream.failure is not None
    if stream.is_removed:
        return stream.failure.text
    return f"stream {stream.name!r} cannot be served: {_with_traceback(stream.failure)}"


def _with_traceback(failure: Failure) -> str:
    return f"{failure.text}\n{failure.traceback}" if failure.traceback else failure.text
