"""Slots: places in shared memory that hold one batch each, and the one table of their moves."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from loaderd_protocol.messages import FailedSample
from loaderd_server.core.tasks import BatchDone, Place

if TYPE_CHECKING:
    from loaderd_server.core.sequences import Epoch


class SlotState(Enum):
    """What a slot is to the core.

    FREE: no bytes that anyone wants. FILLING: a worker may write it. READY: a batch that nobody was
    told of. HELD: announced to a trainer that has not released it. KEPT: released by all; the batch
    is still there for whoever comes later.
    """

    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    HELD = "held"
    KEPT = "kept"


_MOVES = frozenset(
    {
        (SlotState.FREE, SlotState.FILLING),
        (SlotState.FILLING, SlotState.READY),
        (SlotState.FILLING, SlotState.FREE),  # the batch failed, is empty or too large
        (SlotState.READY, SlotState.HELD),
        (SlotState.READY, SlotState.FREE),  # evicted
        (SlotState.HELD, SlotState.KEPT),
        (SlotState.KEPT, SlotState.HELD),
        (SlotState.KEPT, SlotState.FREE),  # evicted
    }
)


class IllegalMove(AssertionError):
    """A fault of the core: a slot was asked to move as the table forbids. It has not moved."""


class Slot:
    """One place for a batch; made and moved by its pool alone."""

    __slots__ = (
        "batch", "done", "epoch", "failed", "generation", "history", "holds", "number", "place",
        "remade", "state",
    )  # fmt: skip

    def __init__(self, number: int, place: Place) -> None:
        self.number = number
        self.place = place
        self.state = SlotState.FREE
        #: Counts the uses: no two batches in this slot share a generation.
        self.generation = 0
        #: The batch in it; None only while free.
        self.epoch: Epoch | None = None
        self.batch = -1
        #: Where its parts lie; None until the worker is done.
        self.done: BatchDone | None = None
        self.failed: tuple[FailedSample, ...] = ()
        #: The batch in it had been made before.
        self.remade = False
        #: Announcements that are not released yet; above 0 exactly while HELD.
        self.holds = 0
        self.history: deque[tuple[SlotState, int, int]] = deque(maxlen=12)

    def _move(self, to: SlotState) -> None:
        if (self.state, to) not in _MOVES:
            raise IllegalMove(self._complaint(f"cannot go from {self.state.value} to {to.value}"))
        self.history.append((self.state, self.generation, self.batch))
        self.state = to

    def _complaint(self, what: str) -> str:
        steps = [f"{s.value} (generation {g}, batch {b})" for s, g, b in self.history]
        return f"slot {self.number} {what}; generation {self.generation}, before: {steps}"


class SlotPool:
    """All slots of one stream: those of the common size, and larger ones for larger batches."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        #: Capacity of the common slots; 0 before there are any.
        self.base_bytes = 0
        self.base_count = 0
        self._free: dict[int, list[Slot]] = {}
        #: READY and KEPT slots, longest unused first: what can be evicted.
        self.idle: dict[int, Slot] = {}
        #: Capacities above the common one, ascending.
        self.large_sizes: list[int] = []

    def add(self, arena: int, slot_bytes: int, count: int, first_number: int) -> None:
        """Takes over an arena of ``count`` slots, numbered from ``first_number``."""
        if self.base_bytes == 0:
            self.base_bytes = slot_bytes
        free = self._free.setdefault(slot_bytes, [])
        added = [
            Slot(first_number + i, Place(arena, i * slot_bytes, slot_bytes)) for i in range(count)
        ]
        self.slots.extend(added)
        free.extend(reversed(added))
        if slot_bytes == self.base_bytes:
            self.base_count += count
        elif slot_bytes not in self.large_sizes:
            self.large_sizes = sorted([*self.large_sizes, slot_bytes])

    def free_slot(self, slot_bytes: int) -> Slot | None:
        """A free slot of exactly this capacity; the caller fills it."""
        free = self._free.get(slot_bytes)
        return free[-1] if free else None

    def fill(self, slot: Slot, epoch: Epoch, batch: int) -> None:
        """free -> filling, for this batch."""
        slot._move(SlotState.FILLING)
        free = self._free[slot.place.capacity_bytes]
        if free[-1] is slot:
            free.pop()
        else:
            free.remove(slot)
        slot.generation += 1
        slot.epoch = epoch
        slot.batch = batch
        epoch.busy_slots += 1

    def filled(
        self, slot: Slot, done: BatchDone, failed: tuple[FailedSample, ...], *, remade: bool = False
    ) -> None:
        """filling -> ready."""
        slot._move(SlotState.READY)
        slot.remade = remade
        slot.done = done
        slot.failed = failed
        self.idle[slot.number] = slot
        self._busy(slot, -1)

    def hold(self, slot: Slot) -> None:
        """ready or kept -> held, or one hold more."""
        if slot.state is not SlotState.HELD:
            slot._move(SlotState.HELD)
            del self.idle[slot.number]
            self._busy(slot, 1)
        slot.holds += 1

    def release(self, slot: Slot) -> None:
        """One hold less; held -> kept with the last."""
        if slot.holds < 1:
            raise IllegalMove(slot._complaint("was released more often than held"))
        if slot.holds == 1:
            slot._move(SlotState.KEPT)
            self.idle[slot.number] = slot
            self._busy(slot, -1)
        slot.holds -= 1

    def free(self, slot: Slot) -> None:
        """filling, ready or kept -> free: what was in it is forgotten."""
        was_filling = slot.state is SlotState.FILLING
        slot._move(SlotState.FREE)
        if was_filling:
            self._busy(slot, -1)
        self.idle.pop(slot.number, None)
        slot.epoch = None
        slot.batch = -1
        slot.done = None
        slot.failed = ()
        self._free[slot.place.capacity_bytes].append(slot)

    def unused_arenas(self) -> list[int]:
        """Arenas that no worker writes in and no trainer was told to read in."""
        used = {s.place.arena for s in self.slots if s.state in (SlotState.FILLING, SlotState.HELD)}
        return sorted({slot.place.arena for slot in self.slots} - used)

    def drop(self, arena: int) -> int:
        """Forgets the slots of an unused arena; returns how many bytes they were.

        Only of a stream for which nothing is made any more.
        """
        dropped = [slot for slot in self.slots if slot.place.arena == arena]
        self.slots = [slot for slot in self.slots if slot.place.arena != arena]
        for slot_bytes, free in self._free.items():
            self._free[slot_bytes] = [slot for slot in free if slot.place.arena != arena]
        for slot in dropped:
            self.idle.pop(slot.number, None)
        return sum(slot.place.capacity_bytes for slot in dropped)

    def count(self, state: SlotState) -> int:
        """How many slots are in this state."""
        return sum(slot.state is state for slot in self.slots)

    @staticmethod
    def _busy(slot: Slot, step: int) -> None:
        assert slot.epoch is not None
        slot.epoch.busy_slots += step
