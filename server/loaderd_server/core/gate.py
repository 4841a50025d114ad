"""The gate: a stream makes nothing before the trainers are there that it was told to await."""

from __future__ import annotations


class Gate:
    """Closed until ``count`` trainers have started, or the time since the first of them is over.

    Once open it stays so until the last trainer has left.
    """

    def __init__(self, count: int, timeout_s: float | None) -> None:
        self.count = count
        self._timeout_s = timeout_s
        self.is_open = count <= 1
        #: When it opens without the missing ones; None while nobody waits, or for ever.
        self.deadline: float | None = None

    def arrived(self, trainers: int, now: float) -> bool:
        """So many trainers have started; whether the gate opens by that."""
        if self.is_open:
            return False
        if self.deadline is None and self._timeout_s is not None:
            self.deadline = now + self._timeout_s
        self.is_open = trainers >= self.count
        return self.is_open

    def is_late(self, now: float) -> bool:
        """Whether the time is over; the gate opens by that."""
        if self.is_open or self.deadline is None or now < self.deadline:
            return False
        self.is_open = True
        return True

    def close(self) -> None:
        """All trainers have left."""
        self.is_open = self.count <= 1
        self.deadline = None
