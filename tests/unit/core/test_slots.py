"""Slots: the table of moves, generations, holds, and which free slot is next."""

from __future__ import annotations

import numpy as np
import pytest

from loaderd_server.core.orders import Cutting, Order, RankOrder
from loaderd_server.core.sequences import Epoch, Sequence
from loaderd_server.core.settings import Mode, StreamSettings
from loaderd_server.core.slots import IllegalMove, Slot, SlotPool, SlotState
from loaderd_server.core.streams import Stream
from loaderd_server.core.tasks import BatchDone

_DONE = BatchDone(1, 4, 100, b"", 0, 0)


def _epoch() -> Epoch:
    settings = StreamSettings("s", "d", Mode.BROADCAST, 0, 4, drop_last=False)
    view = RankOrder(Order(np.arange(40), None, None), Cutting(4, drop_last=False), 0, 1)
    return Epoch(Sequence(Stream(settings, 1, 1 << 20), 0, 0, 1), 0, view)


def _pool(count: int = 3) -> SlotPool:
    pool = SlotPool()
    pool.add(7, 4096, count, 0)
    return pool


def _filling(pool: SlotPool, epoch: Epoch, batch: int = 0) -> Slot:
    slot = pool.free_slot(4096)
    assert slot is not None
    pool.fill(slot, epoch, batch)
    return slot


def test_a_slot_goes_the_whole_round() -> None:
    pool, epoch = _pool(), _epoch()
    slot = _filling(pool, epoch)
    seen = [slot.state]
    pool.filled(slot, _DONE, ())
    seen.append(slot.state)
    pool.hold(slot)
    seen.append(slot.state)
    pool.release(slot)
    seen.append(slot.state)
    pool.free(slot)
    seen.append(slot.state)
    assert seen == [
        SlotState.FILLING,
        SlotState.READY,
        SlotState.HELD,
        SlotState.KEPT,
        SlotState.FREE,
    ]


def test_each_use_has_its_own_generation() -> None:
    pool, epoch = _pool(1), _epoch()
    generations = []
    for batch in range(3):
        slot = _filling(pool, epoch, batch)
        generations.append(slot.generation)
        pool.free(slot)
    assert generations == [1, 2, 3]


def test_slots_lie_one_after_the_other_in_their_arena() -> None:
    places = [slot.place for slot in _pool().slots]
    assert [(p.arena, p.offset, p.capacity_bytes) for p in places] == [
        (7, 0, 4096),
        (7, 4096, 4096),
        (7, 8192, 4096),
    ]


def test_a_held_slot_is_kept_only_after_its_last_release() -> None:
    pool = _pool()
    slot = _filling(pool, _epoch())
    pool.filled(slot, _DONE, ())
    pool.hold(slot)
    pool.hold(slot)
    pool.release(slot)
    assert (slot.state, slot.holds) == (SlotState.HELD, 1)
    pool.release(slot)
    assert (slot.state, slot.holds) == (SlotState.KEPT, 0)


def test_an_illegal_move_tells_the_history_and_changes_nothing() -> None:
    pool = _pool()
    slot = _filling(pool, _epoch(), batch=3)
    with pytest.raises(IllegalMove, match=r"slot 0 cannot go from filling to held.*batch -1"):
        pool.hold(slot)
    assert slot.state is SlotState.FILLING
    assert slot.holds == 0


def test_a_held_slot_cannot_be_freed_nor_filled() -> None:
    pool, epoch = _pool(), _epoch()
    slot = _filling(pool, epoch)
    pool.filled(slot, _DONE, ())
    pool.hold(slot)
    with pytest.raises(IllegalMove):
        pool.free(slot)
    with pytest.raises(IllegalMove):
        pool.fill(slot, epoch, 1)
    assert slot.state is SlotState.HELD


def test_a_release_too_many_is_a_fault() -> None:
    pool = _pool()
    slot = _filling(pool, _epoch())
    pool.filled(slot, _DONE, ())
    with pytest.raises(IllegalMove, match="released more often than held"):
        pool.release(slot)


def test_an_epoch_knows_how_many_of_its_slots_are_in_use() -> None:
    pool, epoch = _pool(), _epoch()
    slot = _filling(pool, epoch)
    assert epoch.busy_slots == 1
    pool.filled(slot, _DONE, ())
    assert epoch.busy_slots == 0
    pool.hold(slot)
    assert epoch.busy_slots == 1
    pool.release(slot)
    assert epoch.busy_slots == 0


def test_larger_slots_are_kept_apart_from_the_common_ones() -> None:
    pool = _pool(1)
    pool.add(8, 16384, 1, 1)
    assert pool.base_count == 1
    assert pool.large_sizes == [16384]
    large = pool.free_slot(16384)
    assert large is not None
    assert large.place.arena == 8


def test_the_longest_unused_slot_is_first_among_the_idle() -> None:
    pool, epoch = _pool(), _epoch()
    slots = [_filling(pool, epoch, batch) for batch in range(3)]
    for slot in slots:
        pool.filled(slot, _DONE, ())
    pool.hold(slots[0])
    pool.release(slots[0])
    assert [slot.batch for slot in pool.idle.values()] == [1, 2, 0]
