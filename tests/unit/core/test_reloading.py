"""Streams that come and go while the core runs: who is told what, and when memory goes back."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
from tests.unit.core.driver import Bench, bad_sample, done, settings_of

from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import Announce, Refused, Start, Subscribe, Subscribed
from loaderd_server.core.actions import Assign, DropArena, MakeArena, StreamOpened
from loaderd_server.core.events import (
    DatasetFailed,
    DatasetReady,
    LeaseBegan,
    StreamsChanged,
    WorkerEnded,
    WorkerStarted,
)
from loaderd_server.core.settings import CoreSettings, Lag, Mode, Sharing, StreamSettings
from loaderd_server.core.slots import SlotState
from loaderd_server.core.tasks import BatchTask, MeasureTask, OrderTask


def stream(number: int, name: str | None = None, dataset: str | None = None) -> StreamSettings:
    """The settings of stream ``s<number>`` as ``settings_of`` has them, perhaps under another name."""
    found = settings_of(streams=number + 1).streams[number]
    return replace(found, name=name or found.name, dataset=dataset or found.dataset)


def dropped(bench: Bench) -> list[int]:
    """Arenas that went back, in order."""
    return [action.arena for action in bench.done_so_far(DropArena)]


def refusals(bench: Bench, lease: int) -> list[tuple[int, str]]:
    """Why subscriptions of a trainer ended."""
    return [(refused.code, refused.text) for refused in bench.messages(lease, Refused)]


def names(bench: Bench) -> list[str]:
    """The streams there are."""
    return [status.name for status in bench.core.status().streams]


# --- what trainers see ----------------------------------------------------------------------


def test_a_removed_stream_ends_with_what_happened_and_what_to_do() -> None:
    bench = Bench(settings_of(streams=2))
    bench.trainer(1, "s0")
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    ((code, text),) = refusals(bench, 1)
    assert code == ErrorCode.STREAM_ENDED
    assert "'s0' ended: it was removed by a reload of the configuration" in text
    assert "streams.s0" in text
    assert "SIGHUP" in text
    assert names(bench) == ["s1"]


def test_a_changed_stream_ends_with_the_advice_to_connect_again() -> None:
    bench = Bench(settings_of())
    bench.trainer(1)
    bench.event(StreamsChanged(("s0",), (replace(stream(0), batch_size=3),)))
    ((code, text),) = refusals(bench, 1)
    assert code == ErrorCode.STREAM_ENDED
    assert "changed by a reload of the configuration" in text
    assert "Connect again" in text


def test_who_connects_again_to_a_changed_stream_gets_the_new_batches() -> None:
    bench = Bench(settings_of())
    bench.makes_batches = True
    bench.trainer(1)
    bench.event(StreamsChanged(("s0",), (replace(stream(0), batch_size=3),)))
    bench.say(1, Subscribe(1, "s0", 0, 1, 2, 0))
    bench.say(1, Start(1, 1, 0, 0))
    assert bench.messages(1, Subscribed)[-1].batches == 4
    assert bench.messages(1, Announce)[-1].rows == 3


def test_a_stream_that_did_not_change_goes_on_batch_for_batch() -> None:
    bench = Bench(settings_of(streams=2))
    bench.makes_batches = True
    bench.trainer(1, "s1")
    bench.event(StreamsChanged(("s0",), (stream(0, "new"),), ("d0",)))
    while len(bench.messages(1, Announce)) > bench.released[1]:
        bench.release(1, bench.messages(1, Announce)[bench.released[1]])
    assert [told.batch for told in bench.messages(1, Announce)] == [0, 1, 2]
    assert refusals(bench, 1) == []


def test_a_subscription_that_waited_for_its_dataset_ends_too() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.trainer(1)
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    assert [code for code, _text in refusals(bench, 1)] == [ErrorCode.STREAM_ENDED]


def test_a_removed_stream_is_unknown_to_who_comes_later() -> None:
    bench = Bench(settings_of(streams=2))
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    bench.trainer(1, "s0", start=None)
    ((code, text),) = refusals(bench, 1)
    assert code == ErrorCode.UNKNOWN_STREAM
    assert "'s1'" in text


def test_a_queue_that_is_removed_hands_nothing_out_again_while_it_ends() -> None:
    bench = Bench(settings_of(mode=Mode.QUEUE))
    bench.makes_batches = True
    bench.trainer(1)
    bench.trainer(2)
    told = [len(bench.messages(lease, Announce)) for lease in (1, 2)]
    assert sum(told) > 0
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    assert [len(bench.messages(lease, Announce)) for lease in (1, 2)] == told
    assert all(len(refusals(bench, lease)) == 1 for lease in (1, 2))


def test_trainers_that_wait_for_a_window_are_not_served_by_its_end() -> None:
    settings = settings_of()
    waiting = replace(settings.streams[0], sharing=Sharing(lag=Lag.WAIT, window=1))
    bench = Bench(replace(settings, streams=(waiting,)))
    bench.makes_batches = True
    bench.trainer(1)
    bench.trainer(2)
    told = len(bench.messages(2, Announce))
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    assert len(bench.messages(2, Announce)) == told


# --- work on its way ------------------------------------------------------------------------


def test_waiting_work_of_a_removed_stream_is_withdrawn() -> None:
    bench = Bench(settings_of(streams=2, workers=1, depth=1), opens=False)
    bench.starts_workers = False
    for number in range(2):
        bench.event(DatasetReady(f"d{number}", 12))
    (worker,) = bench.core.status().workers
    bench.event(StreamsChanged((f"s{worker.dataset[1]}",), (), ()))
    assert bench.done_so_far(Assign) == []
    assert bench.core._dispatcher.teams[worker.dataset].waiting == 0


def test_a_batch_in_a_worker_s_hands_is_dropped_when_it_is_answered() -> None:
    bench = Bench(settings_of(streams=2))
    bench.trainer(1, "s0")
    worker, task = bench.batch_task()
    bench.event(StreamsChanged(("s0",), (stream(1, "other", "d0"),)))
    assert 1 not in dropped(bench)  # the worker may still write in it
    bench.answer(worker, done(task))
    assert dropped(bench) == [1]
    assert bench.messages(1, Announce) == []


def test_a_batch_whose_worker_dies_is_not_tried_again() -> None:
    bench = Bench(settings_of(streams=2))
    bench.trainer(1, "s0")
    worker, _task = bench.batch_task()
    bench.event(StreamsChanged(("s0",), (stream(1, "other", "d0"),)))
    bench.die(worker)
    assert dropped(bench) == [1]
    tasks = [a.task for a in bench.done_so_far(Assign) if isinstance(a.task, BatchTask)]
    assert len(tasks) == 1


@pytest.mark.parametrize("dies", [False, True])
def test_an_order_in_a_worker_s_hands_opens_no_removed_stream(dies: bool) -> None:
    bench = Bench(settings_of(streams=2), opens=False)
    bench.starts_workers = False
    bench.event(DatasetReady("d0", 12))
    (worker,) = bench.core.status().workers
    bench._work = lambda worker: None  # type: ignore[method-assign]
    bench.event(WorkerStarted(worker.number, 1))
    (task,) = bench.hands[worker.number]
    assert isinstance(task, OrderTask)
    bench.event(StreamsChanged(("s0",), ()))
    if dies:
        bench.die(worker.number)
    else:
        bench.answer(worker.number, bench.order(task))
    assert bench.done_so_far(MakeArena) == []
    assert bench.core._dispatcher.teams["d0"].waiting == 0


def test_an_arena_that_was_asked_for_is_dropped_as_soon_as_it_is_there() -> None:
    bench = Bench(settings_of(streams=2), opens=False)
    bench.event(DatasetReady("d1", 12))

    def remove_first(_asked: MakeArena) -> None:
        bench._later(StreamsChanged(("s0",), ()))  # comes before ArenaReady

    bench.arena_refusal = remove_first
    bench.event(DatasetReady("d0", 12))
    assert [opened.stream for opened in bench.opened()] == ["s1"]
    assert dropped(bench) == [2]
    assert bench.core._reloading._leaving == []


def test_an_arena_that_is_refused_leaves_nothing_of_its_removed_stream() -> None:
    bench = Bench(settings_of(), opens=False)

    def remove_first(_asked: MakeArena) -> str:
        bench._later(StreamsChanged(("s0",), ()))
        return "all is taken"

    bench.arena_refusal = remove_first
    bench.event(DatasetReady("d0", 12))
    assert dropped(bench) == []
    assert bench.core._reloading._leaving == []


# --- memory ---------------------------------------------------------------------------------


def test_arenas_that_nobody_uses_are_dropped_at_once() -> None:
    bench = Bench(settings_of(streams=2))
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    assert dropped(bench) == [1]


def test_an_arena_is_dropped_with_the_last_release_and_not_before() -> None:
    bench = Bench(settings_of(streams=2))
    bench.makes_batches = True
    bench.trainer(1, "s0")
    first, *others = bench.messages(1, Announce)
    assert others
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    for told in others:
        bench.release(1, told)
    assert dropped(bench) == []
    bench.release(1, first)
    assert dropped(bench) == [1]
    assert bench.core._reloading._leaving == []


def test_an_arena_is_dropped_when_the_trainer_that_held_it_dies() -> None:
    bench = Bench(settings_of(streams=2))
    bench.makes_batches = True
    bench.trainer(1, "s0")
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    bench.leave(1)
    assert dropped(bench) == [1]


def test_a_new_stream_waits_for_the_memory_of_one_that_leaves() -> None:
    bench = Bench(settings_of(slots=5, streams=1))
    bench.makes_batches = True
    bench.trainer(1)
    bench.arena_refusal = lambda _asked: None if dropped(bench) else "all is taken"
    bench.event(StreamsChanged(("s0",), (replace(stream(0), slots=5, batch_size=3),)))
    assert len(bench.opened()) == 1
    assert any("waits for memory" in line for line in bench.logged())
    for told in bench.messages(1, Announce):
        bench.release(1, told)
    assert len(bench.opened()) == 2
    assert bench.closed() == []


def test_a_new_stream_is_closed_where_no_memory_will_come() -> None:
    bench = Bench(settings_of(slots=5))
    bench.arena_refusal = lambda _asked: "all is taken"
    bench.event(StreamsChanged((), (replace(stream(1), dataset="d0", slots=5),)))
    (text,) = bench.closed()
    assert "all is taken" in text


def test_a_stream_that_waits_for_memory_can_be_removed_itself() -> None:
    bench = Bench(settings_of(slots=5))
    bench.makes_batches = True
    bench.trainer(1)
    bench.arena_refusal = lambda _asked: "all is taken"
    bench.event(StreamsChanged(("s0",), (replace(stream(0), slots=5, batch_size=3),)))
    bench.event(StreamsChanged(("s0",), ()))
    asked = len(bench.done_so_far(MakeArena))
    for told in bench.messages(1, Announce):
        bench.release(1, told)
    assert dropped(bench) == [1]
    assert len(bench.done_so_far(MakeArena)) == asked


def test_orders_of_a_removed_stream_are_free_without_the_collector() -> None:
    bench = Bench(settings_of(streams=2))
    bench.makes_batches = True
    bench.trainer(1, "s0")
    order = weakref.ref(bench.core._streams["s0"].orders.ready[(0, 0)].indices)
    bench.event(StreamsChanged(("s0",), (), ("d0",)))
    gc.disable()
    try:
        assert order() is not None
        bench.actions.clear()  # tasks show parts of it
        bench.leave(1)
        assert order() is None
    finally:
        gc.enable()


# --- new streams and datasets ---------------------------------------------------------------


def test_a_new_stream_of_a_built_dataset_opens_at_once() -> None:
    bench = Bench(settings_of())
    bench.event(StreamsChanged((), (stream(0, "more"),)))
    assert [opened.stream for opened in bench.opened()] == ["s0", "more"]


def test_a_new_stream_of_a_new_dataset_opens_when_that_is_built() -> None:
    bench = Bench(settings_of())
    bench.event(StreamsChanged((), (stream(1),)))
    assert [opened.stream for opened in bench.opened()] == ["s0"]
    bench.event(DatasetReady("d1", 12))
    assert [opened.stream for opened in bench.opened()] == ["s0", "s1"]


def test_a_new_stream_of_a_dataset_that_failed_is_closed_with_its_reason() -> None:
    bench = Bench(settings_of(streams=2))
    bench.event(DatasetFailed("d1", bad_sample(3)))
    bench.event(StreamsChanged((), (stream(1, "more"),)))
    assert len(bench.closed()) == 2
    assert "sample 3 is bad" in bench.closed()[1]


def test_a_stream_that_failed_is_served_once_its_dataset_was_changed() -> None:
    bench = Bench(settings_of(streams=2), opens=False)
    bench.event(DatasetReady("d0", 12))
    bench.event(DatasetFailed("d1", bad_sample(3)))
    bench.event(StreamsChanged(("s1",), (stream(1),), ("d1",)))
    bench.event(DatasetReady("d1", 12))
    assert [opened.stream for opened in bench.opened()] == ["s0", "s1"]


def test_a_changed_dataset_has_new_workers_and_the_old_ones_end_unmissed() -> None:
    bench = Bench(settings_of())
    bench.trainer(1)
    worker, _task = bench.batch_task()
    bench.event(StreamsChanged(("s0",), (stream(0),), ("d0",)))
    bench.event(DatasetReady("d0", 20))
    bench.say(1, Subscribe(1, "s0", 0, 1, 2, 0))
    bench.say(1, Start(1, 1, 0, 0))
    assert bench.messages(1, Subscribed)[-1].samples == 20
    bench.hands.pop(worker)
    bench.event(WorkerEnded(worker, "ended with its dataset", None))
    assert dropped(bench) == [1]
    assert bench.logged() == []  # it was to be expected
    assert {w.number for w in bench.core.status().workers} == {worker + 1}


def test_the_shares_of_the_memory_follow_the_number_of_streams() -> None:
    bench = Bench(settings_of(memory_bytes=8 * 8192 * 2))
    assert bench.opened()[0].slots == 16
    bench.event(StreamsChanged((), (stream(0, "more"),)))
    assert bench.opened()[1] == StreamOpened("more", 8192, 8)


def test_a_new_stream_with_too_few_slots_is_closed_and_says_how_many() -> None:
    bench = Bench(settings_of(workers=2))
    bench.event(StreamsChanged((), (replace(stream(0, "more"), slots=2),)))
    (text,) = bench.closed()
    assert "4 are needed" in text


@pytest.mark.parametrize("dies", [False, True])
def test_measuring_for_a_removed_stream_asks_for_no_slots(dies: bool) -> None:
    settings: CoreSettings = settings_of()
    unmeasured = replace(settings.streams[0], slot_bytes=None)
    bench = Bench(replace(settings, streams=(unmeasured, stream(1))), opens=False)
    work = bench._work

    def all_but_measuring(worker: int) -> None:
        if not any(isinstance(task, MeasureTask) for task in bench.hands[worker]):
            work(worker)

    bench._work = all_but_measuring  # type: ignore[method-assign]
    bench.event(DatasetReady("d0", 12))
    ((worker, tasks),) = bench.hands.items()
    assert isinstance(tasks[0], MeasureTask)
    bench.event(StreamsChanged(("s0",), ()))
    if dies:
        bench.die(worker)
    else:
        work(worker)
    assert len([a for a in bench.done_so_far(Assign) if isinstance(a.task, MeasureTask)]) == 1
    assert bench.done_so_far(MakeArena) == []


def test_an_unused_arena_has_no_slot_that_is_held_or_filled() -> None:
    bench = Bench(settings_of(slots=5))
    bench.trainer(1)
    pool = bench.core._streams["s0"].pool
    assert pool.count(SlotState.FILLING)
    assert pool.unused_arenas() == []
    bench.make()
    bench.make()
    assert pool.count(SlotState.HELD)
    assert pool.unused_arenas() == []


def test_lease_that_began_after_a_reload_is_served() -> None:
    bench = Bench(settings_of())
    bench.event(StreamsChanged(("s0",), (stream(0, "more"),)))
    bench.event(LeaseBegan(7))
    bench.say(7, Subscribe(0, "more", 0, 1, 2, 0))
    assert bench.messages(7, Subscribed)
