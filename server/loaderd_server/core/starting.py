"""Starts: a cursor is put where its trainer wants to be, once gate and order are there."""

from __future__ import annotations

from collections.abc import Callable

from loaderd_protocol.messages import Dealt, EpochStarted, Start
from loaderd_server.core.actions import Severity, Tell
from loaderd_server.core.delivery import Delivery
from loaderd_server.core.endless import EndlessView
from loaderd_server.core.failures import recall_failures
from loaderd_server.core.ordering import OrderDesk
from loaderd_server.core.orders import RankOrder
from loaderd_server.core.places import found, produced_from
from loaderd_server.core.sequences import Cursor, CursorState, View
from loaderd_server.core.streams import Stream
from loaderd_server.core.turn import Turn


class Starting:
    """Carries out Starts. A join, a resume and a return after the daemon's death are all one of these."""

    def __init__(self, turn: Turn, orders: OrderDesk, delivery: Delivery) -> None:
        self._turn = turn
        self._orders = orders
        self._delivery = delivery
        #: Told of a Start that cannot be, and why; set when the core is wired.
        self.refused: Callable[[Cursor, str], None]

    def timer_fired(self, stream: Stream) -> None:
        """Trainers that were awaited for too long are waited for no more."""
        gate = stream.gate
        if gate.is_late(self._turn.now):
            started = sum(c.start is not None for c in stream.cursors)
            self._turn.log(
                Severity.WARNING,
                f"stream {stream.name!r} goes on with {started} of the {gate.count} trainers it was "
                f"to await (await_trainers)",
            )
            self._begin_all(stream)
        elif not gate.is_open:
            self._turn.wake_at(gate.deadline)

    def has_order(self, cursor: Cursor, epoch: int, dealt: tuple[Dealt, ...] = ()) -> bool:
        """Whether the order of that epoch is there; else it is asked for, and the cursor waits."""
        sequence, stream = cursor.sequence, cursor.sequence.stream
        is_there = (epoch, dealt) in sequence.epochs or stream.is_iterable
        if is_there or (sequence.seed, epoch) in stream.orders.ready:
            cursor.awaits = None
            return True
        cursor.awaits = epoch
        self._orders.ask(stream, sequence.seed, epoch, hurry=True)
        return False

    @staticmethod
    def view(stream: Stream, cursor: Cursor, epoch: int, dealt: tuple[Dealt, ...] = ()) -> View:
        """What the cursor reads of an epoch whose order is there."""
        sequence = cursor.sequence
        if stream.is_iterable:
            return EndlessView(stream.cutting)
        known = sequence.epochs.get((epoch, dealt))
        if known is not None:
            return known.view
        order = stream.orders.ready[(sequence.seed, epoch)]
        return RankOrder(order, stream.cutting, sequence.rank, sequence.world_size, dealt)

    def _begin_all(self, stream: Stream, but: Cursor | None = None) -> None:
        """The gate is open: carries out every Start that waits for it."""
        for cursor in tuple(stream.cursors):
            if cursor.state is CursorState.RUNNING and cursor is not but:
                self.begin(cursor)

    def begin(self, cursor: Cursor) -> None:
        """Carries out the cursor's last Start, now or when gate and order let it."""
        asked, stream = cursor.start, cursor.sequence.stream
        if asked is None:
            return
        self._delivery.leave(cursor, done=asked.count)
        cursor.state = CursorState.RUNNING
        if not self._is_let_in(stream, cursor):
            return
        cursor.start = asked = found(cursor, asked)
        cursor.asked_epoch = asked.epoch
        if not self.has_order(cursor, asked.epoch, asked.dealt):
            return
        view = self.view(stream, cursor, asked.epoch, asked.dealt)
        if asked.batch > view.batches:
            why = f"the epoch has {view.batches} batches"
            self.refused(cursor, bad_start(asked, why))
            return
        self._place(cursor, asked, view)
        if not stream.is_iterable:
            self._orders.ask(stream, cursor.sequence.seed, asked.epoch + 1, hurry=False)
        stream.prune()

    def _is_let_in(self, stream: Stream, cursor: Cursor) -> bool:
        """Whether the trainers that are awaited are there."""
        gate = stream.gate
        if gate.is_open:
            return True
        if gate.arrived(
            sum(c.state is CursorState.RUNNING for c in stream.cursors), self._turn.now
        ):
            self._begin_all(stream, but=cursor)
            return True
        self._turn.wake_at(gate.deadline)
        return False

    def _place(self, cursor: Cursor, asked: Start, view: View) -> None:
        cursor.start = None
        cursor.iteration = asked.iteration
        cursor.served_tick = self._turn.tick
        cursor.is_behind = False
        epoch = cursor.sequence.epoch(asked.epoch, asked.dealt, view)
        if isinstance(view, EndlessView):
            epoch = produced_from(epoch, asked, cursor.sequence.stream.settings.shards)
        recall_failures(epoch, asked.failed)
        cursor.place(epoch, asked.batch)
        is_queue = self._delivery.join_queue(cursor, epoch, asked.done)
        message = EpochStarted(
            asked.sub,
            asked.iteration,
            asked.epoch,
            -1 if is_queue or epoch.producer is not None else cursor.end,
            asked.batch,
            view.length,
        )
        self._turn.do(Tell(cursor.lease, message))
        self._delivery.advance(cursor)
        self._delivery.end_queue(epoch)


def bad_start(asked: Start, why: str) -> str:
    """The text for a trainer whose Start cannot be."""
    return f"cannot start at batch {asked.batch} of epoch {asked.epoch}: {why}"
