"""What a loader can tell of itself: how much came, and how long the trainer waited for it."""

from __future__ import annotations

from dataclasses import dataclass

from loaderd_protocol.messages import Announce


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Figures since ``connect``. Times in seconds, sizes in bytes.

    ``copies`` counts slots that came as copies as the trainer held too many views (or asked for
    copies). ``remade``: slots that were made again for this trainer, as it was behind the others'
    window; ``stalls`` and ``stalled_s``: how often and how long a batch was held back as others were
    behind (``lag: wait``). ``reconnects``: how often another daemon took the place of one that ended.
    ``wait_share`` is the part of the time between the first and the last batch that the trainer
    spent waiting for data. ``mean_batch_s`` is that time per batch.
    """

    batches: int
    samples: int
    bytes: int
    wait_s: float
    wait_share: float
    mean_batch_s: float
    copies: int
    failed_batches: int
    empty_batches: int
    failed_samples: int
    remade: int
    stalls: int
    stalled_s: float
    reconnects: int


@dataclass(slots=True)
class Meter:
    """Counts for :class:`LoaderStats`."""

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    wait_s: float = 0.0
    copies: int = 0
    failed_batches: int = 0
    empty_batches: int = 0
    failed_samples: int = 0
    remade: int = 0
    stalls: int = 0
    stalled_s: float = 0.0
    reconnects: int = 0
    first_at: float | None = None
    last_at: float = 0.0

    def came(self, announce: Announce, *, copied: bool) -> None:
        """A slot came in, as a view or as a copy."""
        self.bytes += announce.size_bytes
        self.copies += copied
        self.remade += announce.remade
        if announce.stalled_s:
            self.stalls += 1
            self.stalled_s += announce.stalled_s

    def delivered(self, began: float, ended: float, samples: int) -> None:
        """A batch was given out; the trainer waited from ``began`` to ``ended``."""
        self.batches += 1
        self.samples += samples
        if self.first_at is None:
            self.first_at = ended
        else:
            self.wait_s += ended - began
        self.last_at = ended

    def read(self) -> LoaderStats:
        """The figures now."""
        span = 0.0 if self.first_at is None else self.last_at - self.first_at
        return LoaderStats(
            batches=self.batches,
            samples=self.samples,
            bytes=self.bytes,
            wait_s=self.wait_s,
            wait_share=self.wait_s / span if span > 0 else 0.0,
            mean_batch_s=span / (self.batches - 1) if self.batches > 1 else 0.0,
            copies=self.copies,
            failed_batches=self.failed_batches,
            empty_batches=self.empty_batches,
            failed_samples=self.failed_samples,
            remade=self.remade,
            stalls=self.stalls,
            stalled_s=self.stalled_s,
            reconnects=self.reconnects,
        )
