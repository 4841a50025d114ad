"""Batches larger than the common slot: larger slots, their reuse, patience and refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.driver import Bench, done, settings_of

from loaderd_protocol.arena import PAGE_BYTES
from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import Announce, BatchFailed
from loaderd_server.core.actions import Assign, MakeArena
from loaderd_server.core.overflow import Overflow, size_class
from loaderd_server.core.tasks import BatchTask, BatchTooLarge

_NEEDED = 100_000


def _bench(slots: int | None = None, trainer_prefetch: int = 2) -> Bench:
    bench = Bench(settings_of(slots=slots), length=400)
    bench.trainer(1, prefetch=trainer_prefetch)
    return bench


def _too_large(bench: Bench, needed: int = _NEEDED) -> None:
    worker, task = bench.batch_task()
    assert task.place.capacity_bytes < needed
    bench.answer(worker, BatchTooLarge(task.task, needed))


def _large_arenas(bench: Bench) -> list[MakeArena]:
    return [arena for arena in bench.done_so_far(MakeArena) if arena.slot_bytes > 8192]


def test_a_large_batch_gets_a_large_slot_and_is_delivered_in_order() -> None:
    bench = _bench()
    _too_large(bench)
    (arena,) = _large_arenas(bench)
    assert arena.count == 1
    assert arena.slot_bytes >= _NEEDED
    for _ in range(4):
        bench.make()
    announced = bench.messages(1, Announce)
    assert [a.batch for a in announced] == [0, 1, 2, 3]
    assert announced[0].arena == arena.arena


def test_the_large_slot_serves_the_next_large_batch() -> None:
    bench = _bench(trainer_prefetch=0)
    for _ in range(3):
        _too_large(bench)
        while not bench.messages(1, Announce)[bench.released[1] :]:
            bench.make()
        for announce in bench.messages(1, Announce)[bench.released[1] :]:
            bench.release(1, announce)
        while bench.batch_task()[1].place.capacity_bytes > 8192:
            bench.make()
            for announce in bench.messages(1, Announce)[bench.released[1] :]:
                bench.release(1, announce)
    assert len(_large_arenas(bench)) <= 2


def test_a_stream_that_overflows_often_tries_a_large_slot_first() -> None:
    bench = _bench(trainer_prefetch=0)
    failed_first = 0
    for _ in range(30):
        worker, task = bench.batch_task()
        if task.place.capacity_bytes < _NEEDED:
            failed_first += 1
            bench.answer(worker, BatchTooLarge(task.task, _NEEDED))
        else:
            bench.answer(worker, done(task, _NEEDED))
        for announce in bench.messages(1, Announce)[bench.released[1] :]:
            bench.release(1, announce)
    assert failed_first <= 4


def test_without_memory_the_batch_fails_with_the_numbers_and_the_next_are_fine() -> None:
    bench = _bench()
    bench.arena_refusal = lambda _: "needs 114688 bytes, 5 available; raise memory"
    _too_large(bench)
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.failure.code == ErrorCode.TOO_LARGE
    for part in ("batch 0", "100000 bytes", "8192", "raise memory"):
        assert part in failed.failure.text
    bench.make()
    assert [a.batch for a in bench.messages(1, Announce)] == [1]


def test_the_exact_size_is_tried_where_the_rounded_one_is_refused() -> None:
    bench = _bench()
    bench.arena_refusal = lambda arena: "no" if arena.slot_bytes > 102_400 else None
    _too_large(bench)
    assert [arena.slot_bytes for arena in _large_arenas(bench)] == [114_688, 102_400]
    bench.make()
    assert not bench.messages(1, BatchFailed)


def test_a_refusal_is_remembered_for_a_while() -> None:
    bench = _bench()
    bench.arena_refusal = lambda _: "no memory"
    for _ in range(3):
        _too_large(bench)
    assert len(_large_arenas(bench)) == 2
    bench.pass_time(11)
    bench.release(1, bench.messages(1, BatchFailed)[0])
    _too_large(bench)
    assert len(_large_arenas(bench)) == 4


def test_waiting_for_a_large_slot_that_a_stopped_trainer_holds_ends_with_an_error() -> None:
    bench = Bench(settings_of(slots=30), length=400)
    bench.trainer(2, prefetch=0)
    _too_large(bench)
    for _ in range(2):
        bench.make()
    assert bench.core.status().streams[0].slots_held == 2
    bench.arena_refusal = lambda _: "no memory"
    bench.trainer(1, start=50, prefetch=0)
    _too_large(bench)
    assert not bench.messages(1, BatchFailed)
    bench.pass_time(11)
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.failure.code == ErrorCode.TOO_LARGE
    assert "in use for 10 s" in failed.failure.text


def test_a_large_slot_that_is_released_in_time_serves_who_waits() -> None:
    bench = Bench(settings_of(slots=30), length=400)
    bench.trainer(2, prefetch=0)
    _too_large(bench)
    for _ in range(2):
        bench.make()
    bench.arena_refusal = lambda _: "no memory"
    bench.trainer(1, start=50, prefetch=0)
    _too_large(bench)
    bench.leave(2)
    while not bench.messages(1, Announce):
        bench.make()
    assert bench.messages(1, Announce)[0].batch == 50


def test_a_large_batch_that_is_due_takes_the_slot_of_one_for_later() -> None:
    """One large slot, and the batch after next was quicker to get it."""
    bench = Bench(settings_of(workers=3), length=400)
    bench.trainer(1, prefetch=2)
    third = bench.batch_task(3)
    assert third[1].address.batch == 2
    bench.answer(3, BatchTooLarge(third[1].task, _NEEDED))
    bench.make(3)  # batch 3, which it was given meanwhile
    assert _is_large(bench.hands[3][0])
    bench.make(3)
    bench.arena_refusal = lambda _: "no memory"
    first = next(w for w in (1, 2, 3) for t in bench.hands[w] if t.address.batch == 0)  # type: ignore[union-attr]
    task = bench.hands[first][0]
    bench.answer(first, BatchTooLarge(task.task, _NEEDED))
    again = [
        a.task
        for a in bench.done_so_far(Assign)
        if isinstance(a.task, BatchTask) and a.task.address.batch == 0
    ]
    assert again[-1].place.capacity_bytes > 8192
    assert not bench.messages(1, BatchFailed)


def _is_large(task: object) -> bool:
    return isinstance(task, BatchTask) and task.place.capacity_bytes > 8192


def test_a_large_batch_nobody_waits_for_any_more_is_dropped() -> None:
    bench = Bench(settings_of(slots=30), length=400)
    bench.trainer(2, prefetch=0)
    _too_large(bench)
    for _ in range(2):
        bench.make()
    bench.arena_refusal = lambda _: "no memory"
    bench.trainer(1, start=50, prefetch=0)
    _too_large(bench)
    bench.leave(1)
    bench.pass_time(1)
    bench.leave(2)
    assert not bench.core._streams["s0"].overflow.waiting


@given(st.integers(1, 1 << 45))
def test_size_classes_hold_what_is_needed_and_waste_at_most_a_quarter(needed: int) -> None:
    size = size_class(needed)
    assert size >= needed
    assert size % PAGE_BYTES == 0
    assert size <= needed * 5 // 4 + PAGE_BYTES


@pytest.mark.parametrize(("sizes", "expected"), [([1, 9, 1], 5), ([9, 9, 1], 9), ([], 5), ([9], 9)])
def test_a_large_slot_is_expected_where_most_batches_were_large(
    sizes: list[int], expected: int
) -> None:
    overflow = Overflow()
    for size in sizes:
        overflow.saw(size)
    assert overflow.expected_bytes(5) == expected
