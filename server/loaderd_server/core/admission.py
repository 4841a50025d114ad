"""Admission: newcomers get credits, others give some up, and nobody is left without for ever."""

from __future__ import annotations

from collections.abc import Callable

from loaderd_protocol.messages import Granted
from loaderd_server.core.actions import Tell
from loaderd_server.core.credits import STRANDED_S, is_stranded, lend
from loaderd_server.core.delivery import Delivery
from loaderd_server.core.growth import Growth
from loaderd_server.core.sequences import Cursor, CursorState
from loaderd_server.core.streams import Stream
from loaderd_server.core.turn import Turn

#: How long a newcomer waits for a credit that others are to give back.
CREDIT_PATIENCE_S = 10.0


class Admission:
    """Carries out what each stream's Ledger says."""

    def __init__(self, turn: Turn, growth: Growth, delivery: Delivery) -> None:
        self._turn = turn
        self._growth = growth
        self._delivery = delivery
        #: Told of newcomers that have their first credit, or get none, and why; set when wired.
        self.admitted: Callable[[Stream, Cursor], None]
        self.refused: Callable[[Cursor, str], None]

    def join(self, stream: Stream, cursor: Cursor) -> None:
        """A newcomer whose order is there asks for its credits."""
        stream.ledger.join(cursor)
        self.settle(stream)

    def settle(self, stream: Stream) -> None:
        """Hands out credits anew after trainers, slots or releases came or went."""
        if not stream.is_open:
            return
        is_growing = self._growth.ask(stream)
        changes = stream.ledger.settle(may_take=not is_growing)
        for cursor in changes.changed:
            self._turn.do(Tell(cursor.lease, Granted(cursor.sub, cursor.grant)))
        for cursor in changes.admitted:
            self.admitted(stream, cursor)
        for cursor in changes.changed:
            self._delivery.advance(cursor)
        for cursor in stream.ledger.admitted:
            self._watch_stranded(cursor)
        self._check_waiting(stream, is_growing)

    def _watch_stranded(self, cursor: Cursor) -> None:
        if not is_stranded(cursor):
            cursor.stranded_since = None
        elif cursor.stranded_since is None:
            cursor.stranded_since = self._turn.now
            self._turn.wake_at(self._turn.now + STRANDED_S)

    def _relieve_stranded(self, cursor: Cursor) -> None:
        """Whoever keeps views of all it is granted now gets one credit to go on with."""
        if cursor.stranded_since is None:
            return
        if self._turn.now < cursor.stranded_since + STRANDED_S:
            self._turn.wake_at(cursor.stranded_since + STRANDED_S)
            return
        lend(cursor)
        self._turn.do(Tell(cursor.lease, Granted(cursor.sub, cursor.grant)))
        self._delivery.advance(cursor)

    def _check_waiting(self, stream: Stream, is_growing: bool) -> None:
        """Newcomers without a credit wait for growth, or for others' releases, or not at all."""
        if is_growing:
            return
        ledger = stream.ledger
        for place, cursor in enumerate(tuple(ledger.waiting), len(ledger.admitted) + 1):
            if place > ledger.most:
                self.refused(cursor, _no_room(stream))
                return  # which settled the others as well
            if cursor.deadline is None:
                cursor.deadline = self._turn.now + CREDIT_PATIENCE_S
                self._turn.wake_at(cursor.deadline)

    def timer_fired(self, stream: Stream) -> None:
        """Newcomers that got no credit in time are refused; who is out of credits for long is helped."""
        for cursor in stream.ledger.admitted:
            self._relieve_stranded(cursor)
        for cursor in tuple(stream.ledger.waiting):
            if cursor.deadline is None or cursor.state is CursorState.ENDED:
                continue
            if self._turn.now >= cursor.deadline:
                self.refused(cursor, _no_room(stream))
            else:
                self._turn.wake_at(cursor.deadline)


def _no_room(stream: Stream) -> str:
    ledger = stream.ledger
    workers = ledger.slots - ledger.most - 1
    return (
        f"stream {stream.name!r} has no room for one more trainer: {ledger.slots} slots of "
        f"{stream.slot_bytes} bytes, {workers} workers, so {ledger.most} batches for trainers; "
        f"{len(ledger.admitted)} trainers have or need {ledger.used()} of them. Raise "
        f"streams.{stream.name}.slots, or memory"
    )
