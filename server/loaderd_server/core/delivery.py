"""Delivery: batches go to trainers in order, each for a credit, and come back by their release."""

from __future__ import annotations

from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    BatchEmpty,
    BatchFailed,
)
from loaderd_server.core.actions import Tell
from loaderd_server.core.credits import take_back_promise
from loaderd_server.core.leases import Lease
from loaderd_server.core.sequences import Cursor, CursorState, Emptied, Epoch, Failed, Pending
from loaderd_server.core.slots import Slot
from loaderd_server.core.turn import Turn

#: A trainer with so many batches in hand or fewer, and a credit free, waits for the daemon: it has
#: at most the batch it works on.
_WAITS_WITH_IN_HAND = 1


class Delivery:
    """Announces what is settled and takes back what is released; the only one that holds slots."""

    def __init__(self, turn: Turn, leases: dict[int, Lease]) -> None:
        self._turn = turn
        self._leases = leases

    def settled(self, epoch: Epoch, batch: int) -> None:
        """A batch is in a slot, failed or empty: whoever is at it gets it."""
        for cursor in tuple(epoch.cursors):
            if cursor.position == batch:
                self.advance(cursor)

    def advance(self, cursor: Cursor) -> None:
        """Announces to a running cursor all that its credits and the finished batches allow."""
        epoch = cursor.epoch
        if epoch is None:
            return
        while cursor.outstanding < cursor.grant and cursor.position < epoch.batches:
            entry = epoch.entries.get(cursor.position)
            if entry is None or isinstance(entry, Pending):
                break
            self._announce(cursor, epoch, entry)
            cursor.position += 1
            cursor.outstanding += 1
        self._note_waiting(cursor, epoch)

    def _announce(self, cursor: Cursor, epoch: Epoch, entry: Slot | Failed | Emptied) -> None:
        counts = cursor.sequence.stream.counts
        where = (cursor.sub, cursor.iteration, epoch.number, cursor.position)
        lease = self._leases[cursor.lease]
        if isinstance(entry, Slot):
            cursor.sequence.stream.pool.hold(entry)
            lease.lend(cursor, entry.number, entry.generation, entry)
            counts.announced += 1
            self._turn.do(Tell(cursor.lease, _announcement(where, entry)))
            return
        lease.lend(cursor, NO_SLOT, cursor.position, None)
        if isinstance(entry, Failed):
            self._turn.do(Tell(cursor.lease, BatchFailed(*where, entry.failure)))
            return
        counts.empty += 1
        self._turn.do(Tell(cursor.lease, BatchEmpty(*where, entry.failed)))

    def _note_waiting(self, cursor: Cursor, epoch: Epoch) -> None:
        waits = (
            cursor.outstanding <= _WAITS_WITH_IN_HAND
            and cursor.outstanding < cursor.grant
            and cursor.position < epoch.batches
        )
        if waits and cursor.waiting_since is None:
            cursor.waiting_since = self._turn.now
        elif not waits and cursor.waiting_since is not None:
            cursor.waited_s += self._turn.now - cursor.waiting_since
            cursor.waiting_since = None

    def take_back(self, cursor: Cursor, slot: Slot | None) -> None:
        """One announcement is released: its credit is free, its slot may be."""
        stream = cursor.sequence.stream
        if slot is not None:
            stream.pool.release(slot)
        cursor.outstanding -= 1
        if cursor.state is CursorState.ENDED:
            stream.ledger.orphans -= 1
        elif cursor.promised > cursor.grant:
            take_back_promise(cursor)
            cursor.stranded_since = None  # it is not: it gives back


def _announcement(where: tuple[int, int, int, int], slot: Slot) -> Announce:
    done, place = slot.done, slot.place
    assert done is not None
    return Announce(
        *where,
        place.arena,
        slot.number,
        slot.generation,
        place.offset,
        done.size_bytes,
        done.rows,
        done.layout,
        done.tail_offset,
        done.tail_bytes,
        slot.failed,
    )
