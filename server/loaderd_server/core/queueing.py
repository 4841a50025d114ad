"""A queue: each batch of an epoch goes to one trainer, and to another if that one dies before it is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from loaderd_server.core.sequences import Cursor, Epoch, Pending

if TYPE_CHECKING:
    from loaderd_server.core.sequences import Settled

_WAITS, _OUT, _OVER = 0, 1, 2


class Line:
    """The batches of one epoch of a queue: which wait, which are out with a trainer, which are over."""

    def __init__(self, epoch: Epoch, batches: int) -> None:
        self._epoch = epoch
        self._states = bytearray(batches)
        #: Every batch before it is out or over.
        self._head = 0
        #: Batches that are not over yet.
        self.left = batches
        #: Since when no batch waits for a trainer; who then keeps the others waiting was told of.
        self.idle_since: float | None = None
        self.has_been_told_of = False

    @property
    def is_over(self) -> bool:
        """Whether every batch was given out and done."""
        return self.left == 0

    def waiting(self, most: int) -> Iterator[int]:
        """The first batches that nobody has, at most so many."""
        batch = self._head = self._find(self._head)
        while most > 0 and batch < len(self._states):
            yield batch
            batch = self._find(batch + 1)
            most -= 1

    def _find(self, start: int) -> int:
        found = self._states.find(_WAITS, start)
        return len(self._states) if found < 0 else found

    # --- what is to be made -----------------------------------------------------------------

    def next_missing(self) -> int | None:
        """The first batch that trainers have credits for and that has no entry."""
        entries = self._epoch.entries
        return next((b for b in self.waiting(self._credits()) if b not in entries), None)

    def front(self) -> int:
        """The first batch that nobody has and that has no entry; the number of batches where there is none."""
        batch = self._find(self._head)
        while batch in self._epoch.entries:
            batch = self._find(batch + 1)
        return batch

    def missing(self) -> int:
        """How many batches trainers have credits for and that have no entry."""
        entries = self._epoch.entries
        return sum(b not in entries for b in self.waiting(self._credits()))

    def distance(self, batch: int) -> int | None:
        """How many batches are to be handed out before this one; None where that is over."""
        if batch >= len(self._states) or self._states[batch] == _OVER:
            return None
        return max(0, batch - self._find(self._head))

    def is_wanted(self, batch: int) -> bool:
        """Whether a trainer has a credit for this batch now."""
        return batch in self.waiting(self._credits())

    def _credits(self) -> int:
        return sum(cursor.credits for cursor in self._epoch.cursors)

    # --- what is handed out -----------------------------------------------------------------

    def next_settled(self) -> tuple[int, Settled] | None:
        """The first batch that nobody has and that is made, failed or empty."""
        for batch in self.waiting(self._credits()):
            entry = self._epoch.entries.get(batch)
            if entry is not None and not isinstance(entry, Pending):
                return batch, entry
        return None

    def hungriest(self) -> Cursor | None:
        """Who gets the next batch: the trainer with the fewest in hand."""
        hungry = [cursor for cursor in self._epoch.cursors if cursor.credits]
        return min(hungry, key=lambda c: (c.outstanding, c.served_tick), default=None)

    def hand(self, batch: int, cursor: Cursor) -> None:
        """The batch is this trainer's now."""
        self._states[batch] = _OUT
        cursor.handed.batches.append(batch)

    def done(self, cursor: Cursor, count: int) -> None:
        """The trainer is done with the first ``count`` that it was handed."""
        handed = cursor.handed
        count = max(0, min(count, len(handed.batches)))
        self._over(handed.batches[handed.done : count])
        handed.done = max(handed.done, count)

    def take_back(self, cursor: Cursor) -> list[int]:
        """What the trainer has and is not done with waits again; returns it."""
        handed = cursor.handed
        back = [b for b in handed.batches[handed.done :] if self._states[b] == _OUT]
        for batch in back:
            self._states[batch] = _WAITS
            self._head = min(self._head, batch)
        handed.batches, handed.done = [], 0
        return back

    def give_up(self, cursor: Cursor) -> list[int]:
        """What the trainer has and is not done with is given to nobody else; returns it."""
        handed = cursor.handed
        lost = [b for b in handed.batches[handed.done :] if self._states[b] == _OUT]
        self._over(lost)
        handed.batches, handed.done = [], 0
        return lost

    def skip(self, done: Iterable[int]) -> None:
        """Batches that were done before this daemon was there: pairs (first, last + 1)."""
        bounds = iter(done)
        for first, end in zip(bounds, bounds, strict=False):
            ours = range(max(0, first), min(end, len(self._states)))
            self._over(b for b in ours if self._states[b] == _WAITS)

    def _over(self, batches: Iterable[int]) -> None:
        for batch in batches:
            if self._states[batch] != _OVER:
                self._states[batch] = _OVER
                self.left -= 1
