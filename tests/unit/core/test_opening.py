"""Opening a stream: what is asked in which order, how slots are sized, why it can be closed."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.core.driver import Bench, bad_sample, settings_of

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_protocol.messages import Refused, Subscribe, Subscribed
from loaderd_server.core.actions import Assign, MakeArena, StartWorker
from loaderd_server.core.engine import Core
from loaderd_server.core.events import (
    DatasetFailed,
    DatasetLost,
    DatasetReady,
    LeaseBegan,
    WorkerEnded,
)
from loaderd_server.core.settings import CoreSettings
from loaderd_server.core.tasks import MeasureTask, OrderDone, OrderTask, RowFailure, TaskFailed


def _unmeasured(settings: CoreSettings) -> CoreSettings:
    streams = tuple(dataclasses.replace(stream, slot_bytes=None) for stream in settings.streams)
    return dataclasses.replace(settings, streams=streams)


def test_a_stream_is_opened_by_order_measure_and_arena() -> None:
    bench = Bench(_unmeasured(settings_of()))
    tasks = [type(action.task) for action in bench.done_so_far(Assign)]
    assert tasks[:2] == [OrderTask, MeasureTask]
    (opened,) = bench.opened()
    assert opened.slot_bytes == 12288  # 5000 bytes, headroom, whole pages


def test_a_set_slot_size_needs_no_measuring() -> None:
    bench = Bench(settings_of())
    assert [type(action.task) for action in bench.done_so_far(Assign)] == [OrderTask]
    assert bench.opened()[0].slot_bytes == 8192


def test_auto_slots_are_enough_for_four_trainers() -> None:
    assert Bench(settings_of(workers=2)).opened()[0].slots == 2 + 1 + 4 * 4


def test_auto_slots_keep_to_the_stream_s_share_of_the_memory() -> None:
    bench = Bench(settings_of(streams=2, memory_bytes=2 * 8192 * 7))
    assert [opened.slots for opened in bench.opened()] == [7, 7]


def test_auto_slots_are_never_fewer_than_can_work() -> None:
    assert Bench(settings_of(workers=4, memory_bytes=1)).opened()[0].slots == 6


def test_set_slots_are_kept_as_they_are() -> None:
    assert Bench(settings_of(slots=50, memory_bytes=1)).opened()[0].slots == 50


def test_too_few_set_slots_close_the_stream_before_anything_is_done() -> None:
    bench = Bench(settings_of(workers=2, slots=3))
    assert "streams.s0.slots = 3, but 4 are needed" in bench.closed()[0]
    assert not bench.done_so_far(StartWorker)


def test_a_refused_arena_is_asked_for_again_with_fewer_slots() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.arena_refusal = lambda arena: "no memory" if arena.count > 5 else None
    bench.event(DatasetReady("d0", 12))
    assert [arena.count for arena in bench.done_so_far(MakeArena)] == [18, 9, 4]
    assert bench.opened()[0].slots == 4


@pytest.mark.parametrize("slots", [None, 20])
def test_without_memory_for_the_least_slots_the_stream_is_closed_with_the_numbers(
    slots: int | None,
) -> None:
    bench = Bench(settings_of(slots=slots), opens=False)
    bench.arena_refusal = lambda _: "needs 2, has 1: raise memory"
    bench.event(DatasetReady("d0", 12))
    assert f"no memory for {slots or 3} slots of 8192 bytes" in bench.closed()[0]
    assert "needs 2, has 1: raise memory" in bench.closed()[0]


def test_a_batch_that_ends_its_worker_twice_while_measured_gets_slots_of_a_mebibyte() -> None:
    core = Core(_unmeasured(settings_of()))
    bench = Bench(_unmeasured(settings_of()), opens=False)
    bench.core = core
    bench.starts_workers = True
    deaths = []
    work = bench._work

    def die(worker: int) -> None:
        if bench.hands[worker] and isinstance(bench.hands[worker][0], MeasureTask):
            deaths.append(worker)
            bench.hands[worker].clear()
            bench.event(WorkerEnded(worker, "was killed", None))
        else:
            work(worker)

    bench._work = die  # type: ignore[method-assign]
    bench.event(DatasetReady("d0", 12))
    assert len(deaths) == 2
    assert bench.opened()[0].slot_bytes == 1 << 20


def test_an_empty_order_opens_a_stream_of_no_batches() -> None:
    bench = Bench(_unmeasured(settings_of()), length=0)
    bench.trainer(1)
    assert bench.messages(1, Subscribed)[0].batches == 0


def test_a_dataset_without_a_length_closes_its_streams() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.event(DatasetReady("d0", None))
    assert "dataset 'd0' has no length" in bench.closed()[0]


def test_a_dataset_that_cannot_be_built_refuses_those_who_wait_and_those_who_come() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.trainer(1)
    failure = Failure(
        ErrorCode.STREAM_ENDED, -1, "builtins:OSError", "no such file", "Traceback ..."
    )
    bench.event(DatasetFailed("d0", failure))
    bench.trainer(2)
    for lease in (1, 2):
        (refused,) = bench.messages(lease, Refused)
        assert refused.code == ErrorCode.STREAM_ENDED
        assert "no such file" in refused.text
        assert "Traceback ..." in refused.text


def test_an_order_that_fails_closes_the_stream_with_the_sampler_s_traceback() -> None:
    bench = Bench(settings_of(), opens=False)
    failed = TaskFailed(1, (RowFailure(-1, bad_sample(-1)),))
    bench.order = lambda task: failed  # type: ignore[assignment,return-value]
    bench.trainer(1)
    bench.event(DatasetReady("d0", 12))
    assert "the order of epoch 0 of stream 's0' could not be made" in bench.closed()[0]
    assert "streams.s0.sampler" in bench.closed()[0]
    assert "tb" in bench.messages(1, Refused)[0].text


def test_an_order_that_does_not_fit_its_batches_closes_the_stream() -> None:
    bench = Bench(settings_of(batch_size=None), opens=False)
    bench.event(DatasetReady("d0", 12))  # the bench's orders have no cuts
    assert "gave no batches" in bench.closed()[0]


def test_those_who_come_before_the_stream_is_open_are_served_when_it_is() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.trainer(1)
    assert not bench.told[1]
    bench.event(DatasetReady("d0", 12))
    assert bench.messages(1, Subscribed)[0].batches == 3


def test_an_unknown_stream_is_refused_with_those_there_are() -> None:
    bench = Bench(settings_of(streams=2))
    bench.event(LeaseBegan(1))
    bench.say(1, Subscribe(0, "trian", 0, 1, 2, 0))
    (refused,) = bench.messages(1, Refused)
    assert refused.code == ErrorCode.UNKNOWN_STREAM
    assert "'trian'" in refused.text
    assert "'s0', 's1'" in refused.text


def test_a_stream_opens_though_its_zygote_dies_meanwhile() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.starts_workers = False
    bench.event(DatasetReady("d0", 12))
    bench.event(DatasetLost("d0", "was killed by signal 9 (SIGKILL)"))
    assert not bench.opened()
    bench.starts_workers = True
    bench.event(DatasetReady("d0", 12))
    assert bench.opened()


def test_streams_of_one_dataset_open_side_by_side() -> None:
    settings = settings_of(streams=2)
    one = dataclasses.replace(settings.streams[1], dataset="d0")
    bench = Bench(dataclasses.replace(settings, streams=(settings.streams[0], one)), opens=False)
    bench.event(DatasetReady("d0", 12))
    assert [opened.stream for opened in bench.opened()] == ["s0", "s1"]


def test_events_of_datasets_nobody_serves_are_ignored() -> None:
    bench = Bench(settings_of())
    bench.event(DatasetReady("other", 3))
    bench.event(DatasetLost("other", "was killed"))
    bench.event(DatasetFailed("other", bad_sample(0)))
    bench.makes_batches = True
    bench.trainer(1)
    assert isinstance(bench.order(OrderTask(1, "d0", "s0", 0, 0)), OrderDone)
    assert bench.messages(1, Subscribed)
