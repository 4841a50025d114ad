"""Trainers that drift apart: how far ahead of the last the foremost may be, and who is told of as behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from loaderd_server.core.actions import Severity
from loaderd_server.core.turn import Turn

if TYPE_CHECKING:
    from loaderd_server.core.sequences import Cursor, Epoch
    from loaderd_server.core.streams import Stream


class Window:
    """Keeps trainers of a sequence within ``size`` batches of each other.

    Only trainers in the same epoch wait for each other, and one in the next epoch for those that are
    still in this one: who starts elsewhere on purpose is no laggard. A trainer that reads two epochs
    at once, as in ``zip(loader, loader)``, does not wait for itself.
    """

    def __init__(self, size: int, patience_s: float) -> None:
        self.size = size
        self.patience_s = patience_s

    def limit(self, cursor: Cursor, epoch: Epoch) -> int:
        """The batch of its epoch that this trainer may not be given yet."""
        lasts = [place for _, place in self._behind(cursor, epoch)]
        return epoch.batches if not lasts else max(0, min(lasts) + self.size)

    def laggards(self, cursor: Cursor, epoch: Epoch) -> list[tuple[Cursor, int]]:
        """Whom this trainer waits for, and how far behind each is."""
        return [
            (other, cursor.position - place)
            for other, place in self._behind(cursor, epoch)
            if place + self.size <= cursor.position
        ]

    def is_within(self, cursor: Cursor, epoch: Epoch) -> bool:
        """Whether a trainer that had fallen behind is near the foremost of its epoch again."""
        fronts = [c.position for c in epoch.cursors if c is not cursor]
        return not fronts or max(fronts) - cursor.position < self.size

    @staticmethod
    def _behind(cursor: Cursor, epoch: Epoch) -> list[tuple[Cursor, int]]:
        """Others of the sequence that keep pace, each with its place in this epoch's count."""
        found = []
        for other in epoch.sequence.stream.cursors:
            theirs = other.epoch
            if other is cursor or other.is_behind or theirs is None:
                continue
            if theirs is epoch:
                found.append((other, other.position))
            elif other.lease == cursor.lease:
                continue
            elif theirs.sequence is epoch.sequence and theirs.number == epoch.number - 1:
                found.append((other, other.position - theirs.batches))
        return found


class Lagging:
    """Notes who waits for whom, ends that after the patience, and says once who is behind."""

    def __init__(self, turn: Turn, advance: Callable[[Cursor], None]) -> None:
        self._turn = turn
        self._advance = advance

    def moved(self, cursor: Cursor, epoch: Epoch, *, has_moved: bool) -> None:
        """A trainer of a stream with a window was told all that it may be told now."""
        window = epoch.sequence.stream.window
        assert window is not None
        if cursor.is_behind and window.is_within(cursor, epoch):
            cursor.is_behind = False
        self._note_stall(cursor, epoch, window)
        if has_moved:
            self.let_go(epoch.sequence.stream)

    def let_go(self, stream: Stream) -> None:
        """The last has moved, or has left: those that waited for it may go on."""
        for cursor in tuple(stream.cursors):
            if cursor.stalled_since is not None:
                self._advance(cursor)

    def timer_fired(self, stream: Stream) -> None:
        """Patience with laggards ends."""
        window = stream.window
        if window is None:
            return
        for cursor in tuple(stream.cursors):
            if cursor.stalled_since is None or cursor.epoch is None:
                continue
            if self._turn.now < cursor.stalled_since + window.patience_s:
                self._turn.wake_at(cursor.stalled_since + window.patience_s)
                continue
            for laggard, behind in window.laggards(cursor, cursor.epoch):
                self._leave_window(laggard, behind, window)
            self._advance(cursor)

    def served_again(self, cursor: Cursor, epoch: Epoch, batch: int) -> None:
        """A batch was made once more for a trainer; the first time it is behind others, that is said."""
        ahead = max((c.position for c in epoch.cursors), default=0) - batch
        if cursor.is_behind or ahead <= 0 or epoch.line is not None:
            return
        cursor.is_behind = True
        self._turn.log(
            Severity.WARNING,
            f"trainer {cursor.lease} of stream {epoch.sequence.stream.name!r} is {ahead} batches "
            f"behind the foremost, and what was made is no longer kept: batches are made again "
            f"for it, from batch {batch} of epoch {epoch.number} on",
        )

    def _note_stall(self, cursor: Cursor, epoch: Epoch, window: Window) -> None:
        is_held = (
            cursor.credits > 0
            and cursor.position < cursor.end
            and window.limit(cursor, epoch) <= cursor.position
        )
        counts = epoch.sequence.stream.counts
        if is_held and cursor.stalled_since is None:
            cursor.stalled_since = self._turn.now
            counts.stalls += 1
            self._turn.wake_at(self._turn.now + window.patience_s)
        elif not is_held and cursor.stalled_since is not None:
            stalled_s = self._turn.now - cursor.stalled_since
            cursor.stalled_s += stalled_s
            counts.stalled_s += stalled_s
            cursor.stalled_since = None

    def _leave_window(self, laggard: Cursor, behind: int, window: Window) -> None:
        laggard.is_behind = True
        self._turn.log(
            Severity.WARNING,
            f"trainer {laggard.lease} of stream {laggard.sequence.stream.name!r} is {behind} batches "
            f"behind and was waited for {window.patience_s:g} s (patience_s): others go on "
            f"without it, until it comes within {window.size} batches of them",
        )
