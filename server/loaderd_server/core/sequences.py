"""Sequences (what a rank reads of a stream), their epochs, and the cursors that move in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from loaderd_protocol.errors import Failure
from loaderd_protocol.messages import Dealt, FailedSample, Start
from loaderd_server.core.endless import EndlessView, Producer
from loaderd_server.core.orders import RankOrder
from loaderd_server.core.slots import Slot

if TYPE_CHECKING:
    from loaderd_server.core.queueing import Line
    from loaderd_server.core.streams import Stream

#: Failures of batches remembered an epoch; older ones are found again if asked for.
_REMEMBERED_FAILURES = 1024
#: Epochs of a queue that are remembered as over.
_REMEMBERED_ENDS = 4096


class Pending:
    """A batch that is being made."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch that could not be made; each cursor that comes to it is told."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Emptied:
    """A batch of which every sample was skipped."""

    failed: tuple[FailedSample, ...]


View = RankOrder | EndlessView
Settled = Slot | Failed | Emptied
Entry = Pending | Settled


class Undecided:
    """Of an iterable dataset no batch is ever made again, so there is nothing to remember."""

    def __getitem__(self, batch: int) -> int:
        return 0

    def __setitem__(self, batch: int, decided: int) -> None:
        pass


class Epoch:
    """One epoch of a sequence: what is known of its batches and samples."""

    __slots__ = (
        "batches", "busy_slots", "cursors", "dealt", "decided", "entries", "failed",
        "failed_version", "failures", "line", "number", "producer", "samples_made", "sequence",
        "view",
    )  # fmt: skip

    def __init__(
        self, sequence: Sequence, number: int, view: View, dealt: tuple[Dealt, ...] = ()
    ) -> None:
        self.sequence = sequence
        self.number = number
        #: Parts of it that went to earlier world sizes.
        self.dealt = dealt
        self.view = view
        self.batches = view.batches
        #: Who gets which batch, in a queue.
        self.line: Line | None = None
        #: What makes it in one order, where the dataset is iterable.
        self.producer: Producer | None = None
        #: Batches that are being made, in a slot, failed or empty; no other batch is.
        self.entries: dict[int, Entry] = {}
        self.failures: list[int] = []
        #: Running cursors, in order of arrival.
        self.cursors: list[Cursor] = []
        #: Slots of this epoch that are filling or held.
        self.busy_slots = 0
        #: Positions decided as failed, for good (``on_error: skip | substitute``).
        self.failed: dict[int, FailedSample] = {}
        self.failed_version = 0
        #: 1 for each batch that was made once: the samples in it are decided.
        self.decided: bytearray | Undecided = (
            bytearray(view.batches) if view.length >= 0 else Undecided()
        )
        self.samples_made = 0

    def let_go(self) -> None:
        """Nobody comes to it any more: what refers back to it must not wait for the collector."""
        self.entries.clear()
        self.line = None

    @property
    def is_ordered(self) -> bool:
        """Whether each trainer reads it from its own place on."""
        return self.line is None and self.producer is None

    @property
    def is_unfinished_queue(self) -> bool:
        """Whether batches of it are still to be handed out, to whoever comes."""
        return self.line is not None and not self.line.is_over

    def settle(self, batch: int, entry: Slot | Failed | Emptied) -> None:
        """What became of a batch that was pending."""
        self.entries[batch] = entry
        if isinstance(entry, Failed):
            self.failures.append(batch)
            if len(self.failures) > _REMEMBERED_FAILURES:
                self.forget(self.failures[0])

    def forget(self, batch: int) -> None:
        """The batch is nowhere any more: who wants it has it made again."""
        entry = self.entries.pop(batch, None)
        if isinstance(entry, Failed):
            self.failures.remove(batch)
        for cursor in self.cursors:
            if cursor.position <= batch < cursor.scanned:
                cursor.scanned = batch

    def distance(self, batch: int) -> int | None:
        """How many batches until a cursor comes to this one; None where all have passed it."""
        if self.line is not None:
            return self.line.distance(batch)
        ahead = [batch - place for place in self.places() if place <= batch]
        return min(ahead) if ahead else None

    def places(self) -> list[int]:
        """Where the cursors are whom its batches are kept for, ascending.

        Batches of an iterable dataset are not kept for a trainer that has left the window.
        """
        is_kept = self.producer is None
        return sorted(c.position for c in self.cursors if is_kept or not c.is_behind)

    def is_wanted(self, batch: int) -> bool:
        """Whether some cursor has a credit for this batch now."""
        if self.line is not None:
            return self.line.is_wanted(batch)
        for cursor in self.cursors:
            ahead = batch - cursor.position
            if 0 <= ahead < cursor.grant - cursor.outstanding:
                return True
        return False


class Sequence:
    """What one rank reads of a stream under one seed; rank 0 of 1 but in ``shard``."""

    __slots__ = ("cursors", "ended", "epochs", "rank", "seed", "stream", "world_size")

    def __init__(self, stream: Stream, seed: int, rank: int, world_size: int) -> None:
        self.stream = stream
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        #: By number and by what of them was dealt before; in order of their last use.
        self.epochs: dict[tuple[int, tuple[Dealt, ...]], Epoch] = {}
        #: How many cursors belong to it, running or not.
        self.cursors = 0
        #: Epochs of a queue that are over.
        self.ended: set[int] = set()

    def epoch(self, number: int, dealt: tuple[Dealt, ...], view: View) -> Epoch:
        """The epoch of that number, as the last one used."""
        key = (number, dealt)
        epoch = self.epochs.pop(key, None)
        if epoch is None or epoch.batches != view.batches:
            # A sampler that is not a function of (seed, epoch) gives an order of another length
            # the second time: nothing known of the first one holds.
            epoch = Epoch(self, number, view, dealt)
        self.epochs[key] = epoch
        return epoch

    def is_over(self, number: int) -> None:
        """An epoch of a queue is over; the oldest of very many is forgotten."""
        self.ended.add(number)
        if len(self.ended) > _REMEMBERED_ENDS:
            self.ended.discard(min(self.ended))

    def foremost(self) -> Cursor | None:
        """The running cursor that is ahead of all others."""
        running = [c for epoch in self.epochs.values() for c in epoch.cursors if not epoch.dealt]
        return max(running, key=lambda c: (c.number, c.position), default=None)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a trainer cuts batches: ``batch_size`` rows, 0 for as they are made."""

    batch_size: int = 0
    drop_last: bool = False


@dataclass(slots=True)
class Handed:
    """What a queue handed to a cursor since its last Start, in order; the first ``done`` are done."""

    batches: list[int] = field(default_factory=list)
    done: int = 0


class CursorState(Enum):
    """ASKED: Subscribe waits for the stream, its order or a credit. IDLE: before the first Start."""

    ASKED = "asked"
    IDLE = "idle"
    RUNNING = "running"
    ENDED = "ended"


class Cursor:
    """One subscription of a trainer: its place in a sequence, and its credits."""

    __slots__ = (
        "asked_epoch", "awaits", "cut", "deadline", "end", "epoch", "grant", "handed", "is_behind",
        "is_lent", "iteration", "lease", "outstanding", "position", "promised", "scanned",
        "sequence", "served_tick", "stalled_s", "stalled_since", "start", "state",
        "stranded_since", "sub", "waited_s", "waiting_since", "want",
    )  # fmt: skip

    def __init__(
        self, lease: int, sub: int, sequence: Sequence, want: int, epoch: int, cut: Cut
    ) -> None:
        self.lease = lease
        self.sub = sub
        self.sequence = sequence
        self.cut = cut
        self.state = CursorState.ASKED
        #: The epoch it subscribed with, later the epoch it last started.
        self.asked_epoch = epoch
        #: The epoch whose order it waits for.
        self.awaits: int | None = None
        #: The Start that is not carried out yet.
        self.start: Start | None = None
        self.iteration = -1
        self.epoch: Epoch | None = None
        #: The next batch to announce, and the first that it does not want.
        self.position = 0
        self.end = 0
        #: What a queue handed to it, and how much of that it is done with.
        self.handed = Handed()
        #: It has left the window (``wait``), or was told of in the log as behind it (``follow``).
        self.is_behind = False
        #: Since when it waits as the window is full, and how long it did since its last batch.
        self.stalled_since: float | None = None
        self.stalled_s = 0.0
        #: Every batch in [position, scanned) has an entry in the epoch.
        self.scanned = 0
        #: Credits wanted, granted, and taken by what is announced and not released.
        self.want = want
        self.grant = 0
        self.outstanding = 0
        #: The trainer may keep views of so many batches less one: what it was granted before, as
        #: far as it has not given that back since (see Ledger).
        self.promised = 0
        #: Since when it has had no credit left because its grant was lowered.
        self.stranded_since: float | None = None
        #: It was stranded for long and is lent one credit beyond its share.
        self.is_lent = False
        #: Until when it may wait for a credit.
        self.deadline: float | None = None
        #: ``Turn.tick`` when a batch was last made for it.
        self.served_tick = 0
        self.waiting_since: float | None = None
        self.waited_s = 0.0

    @property
    def number(self) -> int:
        """The number of the epoch it runs in, or -1."""
        return -1 if self.epoch is None else self.epoch.number

    @property
    def has_undone(self) -> bool:
        """Whether a queue gave it batches that it is not done with."""
        return self.handed.done < len(self.handed.batches)

    @property
    def credits(self) -> int:
        """How many more batches it may be told of now."""
        return max(0, self.grant - self.outstanding)

    def place(self, epoch: Epoch, batch: int) -> None:
        """Puts it before ``batch``; it has left its former epoch."""
        self.epoch = epoch
        self.handed = Handed()
        self.end = epoch.view.end(self.cut.batch_size, drop_last=self.cut.drop_last)
        self.position = batch
        self.scanned = batch
        epoch.cursors.append(self)

    def leave(self) -> None:
        """Takes it out of its epoch."""
        if self.epoch is not None:
            self.epoch.cursors.remove(self)
        self.epoch = None
        self.waiting_since = None

    def next_missing(self) -> int | None:
        """The first batch within its credits, and within the window, that has no entry; or None."""
        epoch = self.epoch
        if epoch is None:
            return None
        if epoch.line is not None:
            return epoch.line.next_missing()
        end = self.reach(epoch)
        if epoch.producer is not None:
            batch = epoch.producer.peek()
            return batch if batch < end and self._has_room(epoch.producer, batch) else None
        batch = max(self.scanned, self.position)
        entries = epoch.entries
        while batch < end and batch in entries:
            batch += 1
        self.scanned = max(batch, self.position)
        return batch if batch < end else None

    def _has_room(self, producer: Producer, batch: int) -> bool:
        worker = producer.shard_of(batch).worker
        return worker is None or self.sequence.stream.has_room(worker)

    def reach(self, epoch: Epoch) -> int:
        """The batch before which its credits, its end or the window stop it."""
        end = min(self.position + self.grant - self.outstanding, self.end)
        if epoch.producer is not None and epoch.producer.end is not None:
            end = min(end, epoch.producer.end)
        window = self.sequence.stream.window
        return end if window is None else min(end, window.limit(self, epoch))
