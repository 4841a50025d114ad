"""A stream: its settings, how far its opening is, its slots, orders, sequences and trainers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from loaderd_protocol.errors import Failure
from loaderd_server.core.credits import Ledger
from loaderd_server.core.gate import Gate
from loaderd_server.core.lagging import Window
from loaderd_server.core.orders import Cutting, Order
from loaderd_server.core.overflow import Overflow
from loaderd_server.core.sequences import Cursor, Epoch, Sequence
from loaderd_server.core.settings import StreamSettings
from loaderd_server.core.slots import SlotPool, SlotState

if TYPE_CHECKING:
    from loaderd_server.core.cache import Cache

#: Epochs without a cursor that a sequence remembers, and sequences that a stream does.
_IDLE_EPOCHS = 4
_IDLE_SEQUENCES = 16


class Phase(Enum):
    """Opening goes from top to bottom; CLOSED can come at any time and stays."""

    WAITING = "waiting for its dataset"
    ORDERING = "ordering its first epoch"
    MEASURING = "measuring its first batch"
    ALLOCATING = "allocating its slots"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True)
class Counts:
    """What was done for a stream since the daemon started."""

    made: int = 0
    #: Of those made, how many had been made before.
    remade: int = 0
    announced: int = 0
    #: Handed out by a queue once more, as their trainer died; lost, where that is not wanted.
    redelivered: int = 0
    lost: int = 0
    #: How often, and for how long, the foremost trainer waited for the last one's window.
    stalls: int = 0
    stalled_s: float = 0.0
    failed: int = 0
    #: Batches passed over as empty.
    empty: int = 0
    samples_loaded: int = 0
    samples_skipped: int = 0
    load_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0


@dataclass(slots=True)
class OrderBook:
    """Orders of a stream by (seed, epoch), those there and those asked for."""

    ready: dict[tuple[int, int], Order] = field(default_factory=dict)
    asked: set[tuple[int, int]] = field(default_factory=set)


class Stream:
    """Everything of one stream. Parts of the core read it all; who changes what is told in each."""

    def __init__(self, settings: StreamSettings, workers: int, share_bytes: int) -> None:
        self.settings = settings
        self.name = settings.name
        self.cutting = Cutting(settings.batch_size, settings.drop_last)
        #: What of the memory budget its common slots may take.
        self.share_bytes = share_bytes
        self.phase = Phase.WAITING
        #: Why it is closed.
        self.failure: Failure | None = None
        #: A reload of the configuration took it out, or put another of its name in its place.
        self.is_removed = False
        #: ``len(dataset)``.
        self.samples = 0
        #: Why the dataset's batches cannot be cut; "" where they can.
        self.uncuttable = ""
        self.is_iterable = False
        #: The cache of its dataset, and whether that takes hints of what is coming.
        self.cache: Cache | None = None
        self.reads_ahead = False
        #: Whether a worker can take one more job; set when the core is wired.
        self.has_room: Callable[[int], bool]
        self.slot_bytes = settings.slot_bytes or 0
        #: Bytes of its arenas, those asked for included.
        self.arena_bytes = 0
        self.pool = SlotPool()
        self.overflow = Overflow()
        self.orders = OrderBook()
        self.sequences: dict[tuple[int, int, int], Sequence] = {}
        #: What keeps the foremost from running away; None where nobody waits.
        self.window: Window | None = None
        self.gate = Gate(settings.sharing.await_count, settings.sharing.await_timeout_s)
        #: All that have not ended, in order of arrival.
        self.cursors: list[Cursor] = []
        self.ledger = Ledger(workers)
        #: An arena for more credits is asked for.
        self.is_growing = False
        #: Until when growth for credits is not asked for again.
        self.no_growth_until = 0.0
        #: No slot could be found this turn.
        self.is_blocked = False
        self.counts = Counts()

    @property
    def is_open(self) -> bool:
        """Whether trainers are served."""
        return self.phase is Phase.OPEN

    def sequence(self, seed: int, rank: int, world_size: int) -> Sequence:
        """The sequence of a seed and rank, as the last one used; new if there is none."""
        key = (seed, rank, world_size)
        sequence = self.sequences.pop(key, None) or Sequence(self, *key)
        self.sequences[key] = sequence
        return sequence

    def prune(self) -> None:
        """Forgets orders, epochs and sequences that no cursor is near; their slots become free."""
        self._prune_orders()
        for sequence in self.sequences.values():
            self._prune_epochs(sequence, _IDLE_EPOCHS)
        idle = [key for key, sequence in self.sequences.items() if not sequence.cursors]
        for key in idle[: max(0, len(idle) - _IDLE_SEQUENCES)]:
            self._prune_epochs(self.sequences[key], 0)
            if not self.sequences[key].epochs:
                del self.sequences[key]

    def near_orders(self) -> set[tuple[int, int]]:
        """(seed, epoch) of orders that cursors are at or come to next, and of the first."""
        near = {(self.settings.seed, 0)}
        for cursor in self.cursors:
            seed = cursor.sequence.seed
            epoch = cursor.awaits if cursor.awaits is not None else cursor.asked_epoch
            near.update(((seed, 0), (seed, epoch), (seed, epoch + 1)))
        return near

    def _prune_orders(self) -> None:
        near = self.near_orders()
        for key in [key for key in self.orders.ready if key not in near]:
            del self.orders.ready[key]

    def _prune_epochs(self, sequence: Sequence, keep: int) -> None:
        idle = [
            (key, epoch)
            for key, epoch in sequence.epochs.items()
            if not epoch.cursors and not epoch.busy_slots and not epoch.is_unfinished_queue
        ]
        for key, epoch in idle[: max(0, len(idle) - keep)]:
            self._free_slots(epoch)
            epoch.let_go()
            del sequence.epochs[key]

    def _free_slots(self, epoch: Epoch) -> None:
        for slot in [slot for slot in self.pool.idle.values() if slot.epoch is epoch]:
            epoch.entries.pop(slot.batch)
            self.pool.free(slot)

    def let_go(self) -> None:
        """Forgets orders and epochs: their memory is free now, not when cycles are collected."""
        for sequence in self.sequences.values():
            for epoch in sequence.epochs.values():
                epoch.let_go()
            sequence.epochs.clear()
        self.sequences.clear()
        self.orders.ready.clear()

    def slots_in(self, state: SlotState) -> int:
        """How many of its slots are in a state."""
        return self.pool.count(state)
