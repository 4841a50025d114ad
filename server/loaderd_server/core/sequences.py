"""Sequences (what a rank reads of a stream), their epochs, and the cursors that move in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from loaderd_protocol.errors import Failure
from loaderd_protocol.messages import FailedSample, Start
from loaderd_server.core.orders import RankOrder
from loaderd_server.core.slots import Slot

if TYPE_CHECKING:
    from loaderd_server.core.streams import Stream

#: Failures of batches remembered an epoch; older ones are found again if asked for.
_REMEMBERED_FAILURES = 1024


class Pending:
    """A batch that is being made."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch that could not be made; each cursor that comes to it is told."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Emptied:
    """A batch of which every sample was skipped."""

    failed: tuple[FailedSample, ...]


Entry = Pending | Slot | Failed | Emptied


class Epoch:
    """One epoch of a sequence: what is known of its batches and samples."""

    __slots__ = (
        "batches", "busy_slots", "cursors", "decided", "entries", "failed", "failed_version",
        "failures", "number", "samples_made", "sequence", "view",
    )  # fmt: skip

    def __init__(self, sequence: Sequence, number: int, view: RankOrder) -> None:
        self.sequence = sequence
        self.number = number
        self.view = view
        self.batches = view.batches
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
        self.decided = bytearray(view.batches)
        self.samples_made = 0

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
        ahead = [batch - c.position for c in self.cursors if c.position <= batch]
        return min(ahead) if ahead else None

    def is_wanted(self, batch: int) -> bool:
        """Whether some cursor has a credit for this batch now."""
        for cursor in self.cursors:
            ahead = batch - cursor.position
            if 0 <= ahead < cursor.grant - cursor.outstanding:
                return True
        return False


class Sequence:
    """What one rank reads of a stream; rank 0 of 1 for all in ``broadcast``."""

    __slots__ = ("cursors", "epochs", "rank", "stream", "world_size")

    def __init__(self, stream: Stream, rank: int, world_size: int) -> None:
        self.stream = stream
        self.rank = rank
        self.world_size = world_size
        #: In order of their last use.
        self.epochs: dict[int, Epoch] = {}
        #: How many cursors belong to it, running or not.
        self.cursors = 0

    def epoch(self, number: int, view: RankOrder) -> Epoch:
        """The epoch of that number, as the last one used."""
        epoch = self.epochs.pop(number, None)
        if epoch is None or epoch.batches != view.batches:
            # A sampler that is not a function of (seed, epoch) gives an order of another length
            # the second time: nothing known of the first one holds.
            epoch = Epoch(self, number, view)
        self.epochs[number] = epoch
        return epoch


class CursorState(Enum):
    """ASKED: Subscribe waits for the stream, its order or a credit. IDLE: before the first Start."""

    ASKED = "asked"
    IDLE = "idle"
    RUNNING = "running"
    ENDED = "ended"


class Cursor:
    """One subscription of a trainer: its place in a sequence, and its credits."""

    __slots__ = (
        "asked_epoch", "awaits", "deadline", "epoch", "grant", "is_lent", "iteration", "lease",
        "outstanding", "position", "promised", "scanned", "sequence", "served_tick", "start",
        "state", "stranded_since", "sub", "waited_s", "waiting_since", "want",
    )  # fmt: skip

    def __init__(self, lease: int, sub: int, sequence: Sequence, want: int, epoch: int) -> None:
        self.lease = lease
        self.sub = sub
        self.sequence = sequence
        self.state = CursorState.ASKED
        #: The epoch it subscribed with, later the epoch it last started.
        self.asked_epoch = epoch
        #: The epoch whose order it waits for.
        self.awaits: int | None = None
        #: The Start that is not carried out yet.
        self.start: Start | None = None
        self.iteration = -1
        self.epoch: Epoch | None = None
        #: The next batch to announce.
        self.position = 0
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

    def place(self, epoch: Epoch, batch: int) -> None:
        """Puts it before ``batch``; it has left its former epoch."""
        self.epoch = epoch
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
        """The first batch within its credits that has no entry, or None."""
        epoch = self.epoch
        if epoch is None:
            return None
        end = min(self.position + self.grant - self.outstanding, epoch.batches)
        batch = max(self.scanned, self.position)
        entries = epoch.entries
        while batch < end and batch in entries:
            batch += 1
        self.scanned = max(batch, self.position)
        return batch if batch < end else None
