"""Delivery: batches go to trainers in order, each for a credit, and come back by their release."""

from __future__ import annotations

from collections.abc import Callable

from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    BatchEmpty,
    BatchFailed,
    EpochEnded,
)
from loaderd_server.core.actions import Severity, Tell
from loaderd_server.core.credits import take_back_promise
from loaderd_server.core.endless import Producer
from loaderd_server.core.lagging import Lagging
from loaderd_server.core.leases import Lease
from loaderd_server.core.queueing import Line
from loaderd_server.core.sequences import Cursor, CursorState, Epoch, Failed, Pending, Settled
from loaderd_server.core.settings import Mode
from loaderd_server.core.slots import Slot
from loaderd_server.core.streams import Stream
from loaderd_server.core.turn import Turn
from loaderd_server.core.unitjob import out_of_window

#: A trainer with so many batches in hand or fewer, and a credit free, waits for the daemon: it has
#: at most the batch it works on.
_WAITS_WITH_IN_HAND = 1


class Delivery:
    """Announces what is settled and takes back what is released; the only one that holds slots."""

    def __init__(self, turn: Turn, leases: dict[int, Lease]) -> None:
        self._turn = turn
        self._leases = leases
        self._lag = Lagging(turn, self.advance)
        #: Told of a trainer whose next batch is gone, and why; set when the core is wired.
        self.fell_out: Callable[[Cursor, str], None]

    def settled(self, epoch: Epoch, batch: int) -> None:
        """A batch is in a slot, failed or empty: whoever is at it gets it."""
        if epoch.line is not None:
            self._hand_out(epoch, epoch.line)
            return
        for cursor in tuple(epoch.cursors):
            if cursor.position == batch:
                self.advance(cursor)

    def advance(self, cursor: Cursor) -> None:
        """Announces to a running cursor all that its credits and the finished batches allow."""
        epoch = cursor.epoch
        if epoch is None:
            return
        if epoch.line is not None:
            self._hand_out(epoch, epoch.line)
            return
        before = cursor.position
        end = cursor.reach(epoch)
        while cursor.position < end:
            entry = epoch.entries.get(cursor.position)
            if entry is None and epoch.producer is not None:
                if not epoch.producer.is_hole(cursor.position):
                    break
                cursor.position += 1  # its shard has ended
                end = cursor.reach(epoch)
                continue
            if entry is None or isinstance(entry, Pending):
                break
            self._announce(cursor, epoch, cursor.position, entry)
            cursor.position += 1
        self._note_waiting(cursor, cursor.position < cursor.end)
        if epoch.sequence.stream.window is not None:
            self._lag.moved(cursor, epoch, has_moved=cursor.position > before)
        if epoch.producer is not None:
            self._look_at_end(cursor, epoch, epoch.producer)

    def look_again(self, epoch: Epoch) -> None:
        """Of an iterable dataset, a shard has ended, or a batch is lost: some may go on, or end."""
        for cursor in tuple(epoch.cursors):
            self.advance(cursor)

    def _look_at_end(self, cursor: Cursor, epoch: Epoch, producer: Producer) -> None:
        """Tells a trainer that its epoch is over, or that what it wants next was not kept for it."""
        if producer.end is not None and cursor.position >= producer.end:
            message = EpochEnded(cursor.sub, cursor.iteration, producer.end)
            self._turn.do(Tell(cursor.lease, message))
            self.leave(cursor, done=0)
        elif producer.is_gone(cursor.position, epoch.entries):
            self.fell_out(cursor, out_of_window(epoch, cursor.position, producer))

    def _hand_out(self, epoch: Epoch, line: Line) -> None:
        """Gives what is made of a queue to those with the fewest in hand."""
        while (found := line.next_settled()) is not None and (cursor := line.hungriest()):
            batch, entry = found
            line.hand(batch, cursor)
            self._announce(cursor, epoch, batch, entry)
        is_left = next(line.waiting(1), None) is not None
        for cursor in epoch.cursors:
            self._note_waiting(cursor, is_left)
        if is_left:
            line.idle_since = None
        elif not line.is_over and line.idle_since is None:
            line.idle_since = self._turn.now
            self._turn.wake_at(self._turn.now + epoch.sequence.stream.settings.sharing.patience_s)

    def join_queue(self, cursor: Cursor, epoch: Epoch, done: tuple[int, ...]) -> bool:
        """Whether this is a queue's epoch; batches ``done`` before are not given again."""
        stream = epoch.sequence.stream
        if stream.settings.mode is not Mode.QUEUE:
            return False
        if epoch.line is None:
            epoch.line = Line(epoch, epoch.view.end(0, drop_last=stream.cutting.drop_last))
            if epoch.number in epoch.sequence.ended:
                epoch.line.skip((0, epoch.batches))
        epoch.line.skip(done)
        return True

    def done(self, cursor: Cursor, count: int) -> None:
        """A queue's trainer is done with the first ``count`` it was given."""
        epoch = cursor.epoch
        if epoch is not None and epoch.line is not None:
            epoch.line.done(cursor, count)
            self.end_queue(epoch)

    def leave(self, cursor: Cursor, *, done: int | None) -> None:
        """Takes a cursor out of its epoch.

        ``done``: how much of what a queue gave it it says to be done with; None where it died.
        """
        epoch = cursor.epoch
        cursor.leave()
        if epoch is None:
            return
        if epoch.line is not None:
            self._leave_queue(cursor, epoch, epoch.line, done)
        elif epoch.sequence.stream.window is not None:
            cursor.stalled_since = None
            self._lag.let_go(epoch.sequence.stream)

    def _leave_queue(self, cursor: Cursor, epoch: Epoch, line: Line, done: int | None) -> None:
        stream = epoch.sequence.stream
        if done is not None:
            line.done(cursor, done)
            line.take_back(cursor)
        elif stream.settings.sharing.redeliver:
            stream.counts.redelivered += len(line.take_back(cursor))
        else:
            stream.counts.lost += len(line.give_up(cursor))
        self._hand_out(epoch, line)
        self.end_queue(epoch)

    def end_queue(self, epoch: Epoch) -> None:
        """Tells everyone at a queue that it is over, once every batch of it is."""
        if epoch.line is None or not epoch.line.is_over:
            return
        epoch.sequence.is_over(epoch.number)
        for cursor in tuple(epoch.cursors):
            message = EpochEnded(cursor.sub, cursor.iteration, epoch.batches)
            self._turn.do(Tell(cursor.lease, message))
            cursor.leave()

    def _announce(self, cursor: Cursor, epoch: Epoch, batch: int, entry: Settled) -> None:
        counts = cursor.sequence.stream.counts
        where = (cursor.sub, cursor.iteration, epoch.number, batch)
        lease = self._leases[cursor.lease]
        cursor.outstanding += 1
        if isinstance(entry, Slot):
            cursor.sequence.stream.pool.hold(entry)
            lease.lend(cursor, entry.number, entry.generation, entry)
            counts.announced += 1
            if entry.remade:
                self._lag.served_again(cursor, epoch, batch)
            self._turn.do(Tell(cursor.lease, _announcement(where, entry, cursor.stalled_s)))
            cursor.stalled_s = 0.0
            return
        lease.lend(cursor, NO_SLOT, batch, None)
        if isinstance(entry, Failed):
            self._turn.do(Tell(cursor.lease, BatchFailed(*where, entry.failure)))
            return
        counts.empty += 1
        self._turn.do(Tell(cursor.lease, BatchEmpty(*where, entry.failed)))

    def _note_waiting(self, cursor: Cursor, is_more: bool) -> None:
        waits = (
            is_more
            and cursor.outstanding <= _WAITS_WITH_IN_HAND
            and cursor.outstanding < cursor.grant
        )
        if waits and cursor.waiting_since is None:
            cursor.waiting_since = self._turn.now
        elif not waits and cursor.waiting_since is not None:
            cursor.waited_s += self._turn.now - cursor.waiting_since
            cursor.waiting_since = None

    def timer_fired(self, stream: Stream) -> None:
        """Trainers that others waited for too long leave the window, or are told of."""
        self._lag.timer_fired(stream)
        if stream.settings.mode is Mode.QUEUE:
            for sequence in stream.sequences.values():
                for epoch in sequence.epochs.values():
                    if epoch.line is not None:
                        self._look_at_queue(stream, epoch, epoch.line)

    def _look_at_queue(self, stream: Stream, epoch: Epoch, line: Line) -> None:
        """Says once who keeps the end of a queue waiting."""
        if line.idle_since is None or line.is_over or line.has_been_told_of:
            return
        due = line.idle_since + stream.settings.sharing.patience_s
        if self._turn.now < due:
            self._turn.wake_at(due)
            return
        waits = [c.lease for c in epoch.cursors if not c.has_undone]
        has = [c.lease for c in epoch.cursors if c.has_undone]
        if not waits or not has:
            line.idle_since = self._turn.now  # somebody may come who then waits
            self._turn.wake_at(self._turn.now + stream.settings.sharing.patience_s)
            return
        line.has_been_told_of = True
        self._turn.log(
            Severity.WARNING,
            f"the end of epoch {epoch.number} of queue {stream.name!r} waits: trainers {has} have "
            f"{line.left} batches that they are not done with, and trainers {waits} nothing to do",
        )

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


def _announcement(where: tuple[int, int, int, int], slot: Slot, stalled_s: float) -> Announce:
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
        slot.remade,
        stalled_s,
        done.state,
    )
