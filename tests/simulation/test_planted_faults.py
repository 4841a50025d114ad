"""The simulation can fail: faults planted in the core are found within a few seeds."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation.checker import Broken
from tests.simulation.world import run_seed

from loaderd_server.core.batchjob import BatchJob
from loaderd_server.core.delivery import Delivery
from loaderd_server.core.endless import Producer
from loaderd_server.core.gate import Gate
from loaderd_server.core.lagging import Lagging, Window
from loaderd_server.core.leases import Lease
from loaderd_server.core.making import Maker
from loaderd_server.core.orders import RankOrder
from loaderd_server.core.queueing import Line
from loaderd_server.core.sequences import Cursor, Epoch, Pending
from loaderd_server.core.slots import Slot, SlotPool, SlotState

_SEEDS = 60


def _is_found(*words: str, seeds: int = _SEEDS) -> bool:
    """Whether some seed breaks with one of these words in what it says."""
    for seed in range(seeds):
        try:
            run_seed(seed)
        except Broken as broken:
            complaint = str(broken).splitlines()[0]
            if any(word in complaint for word in words):
                return True
    return False


def test_a_held_slot_that_is_filled_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release = SlotPool.release

    def forget_other_holds(pool: SlotPool, slot: Slot) -> None:
        release(pool, slot)
        while slot.holds:
            release(pool, slot)

    monkeypatch.setattr(SlotPool, "release", forget_other_holds)
    assert _is_found("slot")


def test_bytes_that_change_under_a_view_are_found_by_the_trainers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a look inside the core: its books agree with each other, and are wrong."""
    give_back = Delivery.take_back

    def keep_no_holds(delivery: Delivery, cursor: Cursor, slot: Slot | None) -> None:
        give_back(delivery, cursor, slot)
        if slot is not None and slot.state is SlotState.HELD:
            slot.holds = 1
            cursor.sequence.stream.pool.release(slot)

    monkeypatch.setattr(Delivery, "take_back", keep_no_holds)
    monkeypatch.setattr("tests.simulation.checker.Checker._slots_are_accounted_for", _look_away)
    assert _is_found("bytes changed under a view", "has a view")


def _look_away(*_: object) -> None:
    pass


def test_a_batch_that_is_skipped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Delivery.advance

    def skip_the_fifth(delivery: Delivery, cursor: Cursor) -> None:
        if cursor.epoch is not None and cursor.position == 4:
            cursor.position += 1
        advance(delivery, cursor)

    monkeypatch.setattr(Delivery, "advance", skip_the_fifth)
    assert _is_found("is due:")


def test_a_slot_that_leaks_when_a_lease_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_all = Lease.take_all
    monkeypatch.setattr(Lease, "take_all", lambda lease: take_all(lease)[1:])
    assert _is_found("slot")


def test_a_task_that_is_not_retried_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maker, "worker_lost", lambda *_: None)
    assert _is_found("slot")


def test_a_wait_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, but seen from the trainers alone."""
    monkeypatch.setattr(Maker, "worker_lost", lambda *_: None)
    monkeypatch.setattr("tests.simulation.checker.Checker._slots_are_accounted_for", _look_away)
    assert _is_found("trainer")


def test_a_failed_sample_that_is_not_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose_all(job: BatchJob) -> None:
        job.positions = job.epoch.view.positions(job.batch)

    monkeypatch.setattr(Maker, "_choose_positions", staticmethod(choose_all))
    assert _is_found("expected", "circles")


def test_a_credit_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Delivery.advance

    def generous(delivery: Delivery, cursor: Cursor) -> None:
        cursor.grant += 1
        advance(delivery, cursor)
        cursor.grant -= 1

    monkeypatch.setattr(Delivery, "advance", generous)
    assert _is_found("credits")


def test_a_batch_made_twice_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Epoch.settle

    def forget(epoch: Epoch, batch: int, entry: Slot) -> None:
        settle(epoch, batch, entry)
        later = epoch.entries.get(batch + 1)
        if isinstance(later, Pending):
            epoch.forget(batch + 1)

    monkeypatch.setattr(Epoch, "settle", forget)
    assert _is_found("nobody knows of")


def test_a_queue_s_batch_that_is_handed_out_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Line.hand

    def forget(line: Line, batch: int, cursor: Cursor) -> None:
        hand(line, batch, cursor)
        if batch % 5 == 3 and len(cursor.handed.batches) == 1:
            line._states[batch] = 0

    monkeypatch.setattr(Line, "hand", forget)
    assert _is_found("taken by", "circles", "credits")


def test_a_queue_s_batch_that_dies_with_its_trainer_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Line, "take_back", lambda *_: [])
    assert _is_found("waits", "nothing will ever happen")


def test_a_window_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "limit", lambda window, cursor, epoch: epoch.batches)
    assert _is_found("though the last is at", seeds=120)


def test_a_patience_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lagging, "timer_fired", _look_away)
    assert _is_found("stalls", "waits", "nothing will ever happen", seeds=120)


def test_a_gate_that_never_opens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gate, "is_late", lambda *_: False)
    assert _is_found("waits", "circles")


def test_an_epoch_that_is_dealt_anew_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    init = RankOrder.__init__

    def forget(view: RankOrder, *args: Any) -> None:
        init(view, *args[:4])

    monkeypatch.setattr(RankOrder, "__init__", forget)
    assert _is_found("expected", "but there are", "lies")


def test_an_iterable_dataset_s_batch_that_makes_room_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slot that somebody in the window still needs must not be taken: its batch is gone for good."""
    monkeypatch.setattr(Producer, "is_gone", lambda *_: False)
    places = Epoch.places
    monkeypatch.setattr(Epoch, "places", lambda epoch: places(epoch)[-1:])
    assert _is_found("waits", "nothing will ever happen")
