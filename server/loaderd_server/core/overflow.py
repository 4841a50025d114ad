"""Batches larger than the common slot: what they wait for, and which sizes to expect."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loaderd_protocol.arena import page_align

if TYPE_CHECKING:
    from loaderd_server.core.batchjob import BatchJob

#: How long a batch waits for a large slot that trainers hold.
PATIENCE_S = 10.0
#: How long a refused allocation is not asked for again.
REFUSAL_S = 10.0
_RECENT = 8


@dataclass(frozen=True, slots=True)
class Refusal:
    """The shell had no memory for a slot of this size."""

    slot_bytes: int
    at: float
    text: str


class Overflow:
    """What one stream knows of its large batches."""

    def __init__(self) -> None:
        #: Jobs that have no slot, with the time each gives up, oldest first.
        self.waiting: deque[tuple[float, BatchJob]] = deque()
        #: The size of the large slot that is asked for, or None.
        self.asked_bytes: int | None = None
        self.refusal: Refusal | None = None
        self._sizes: deque[int] = deque(maxlen=_RECENT)

    def saw(self, size_bytes: int) -> None:
        """A batch needed so much."""
        self._sizes.append(size_bytes)

    def expected_bytes(self, base_bytes: int) -> int:
        """The slot to try first: larger than the common one where most recent batches overflowed."""
        large = [size for size in self._sizes if size > base_bytes]
        return max(large) if 2 * len(large) > len(self._sizes) else base_bytes

    def refused(self, slot_bytes: int, now: float) -> Refusal | None:
        """The recent refusal of that size or a smaller one, or None."""
        refusal = self.refusal
        if refusal is None or now - refusal.at > REFUSAL_S or slot_bytes < refusal.slot_bytes:
            return None
        return refusal


def size_class(needed_bytes: int) -> int:
    """``needed_bytes`` rounded up to one of four sizes a power of two, so that slots fit again."""
    step = max(1, 1 << max(0, needed_bytes.bit_length() - 3))
    return page_align(-(-needed_bytes // step) * step)
