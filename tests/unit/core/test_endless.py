"""Iterable datasets in the core: one order, one worker a shard, a window, an end that is told."""

from __future__ import annotations

import pytest
from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    BatchFailed,
    EpochEnded,
    EpochStarted,
    Refused,
    Release,
    ShardState,
    Start,
    Subscribe,
    Subscribed,
)
from loaderd_server.core.actions import Assign
from loaderd_server.core.endless import Producer
from loaderd_server.core.events import DatasetReady, LeaseBegan
from loaderd_server.core.settings import ErrorPolicy, Mode, Sharing
from loaderd_server.core.tasks import IterateTask


def _bench(
    shards: int = 1, units: int = 6, slots: int = 9, workers: int = 1, window: int = 3
) -> Bench:
    sharing = Sharing(window=window, patience_s=5.0)
    bench = Bench(
        settings_of(shards=shards, slots=slots, workers=workers, sharing=sharing), opens=False
    )
    bench.makes_batches = True
    bench.units = units
    bench.event(DatasetReady("d0", None, is_iterable=True))
    return bench


def _batches(bench: Bench, lease: int) -> list[int]:
    return [announce.batch for announce in bench.messages(lease, Announce)]


def _read_on(bench: Bench, lease: int) -> None:
    while told := bench.messages(lease, Announce)[bench.released[lease] :]:
        for announce in told:
            bench.release(lease, announce)


def _read_on_to(bench: Bench, lease: int, batches: int) -> None:
    for _ in range(batches):
        bench.release(lease, bench.messages(lease, Announce)[bench.released[lease]])


def _tasks(bench: Bench) -> list[IterateTask]:
    return [a.task for a in bench.done_so_far(Assign) if isinstance(a.task, IterateTask)]


def test_the_end_is_told_where_the_iterator_ends() -> None:
    bench = _bench(units=4)
    bench.trainer(1)
    (told,) = bench.messages(1, Subscribed)
    assert (told.samples, told.batches, told.positions, told.shards) == (-1, -1, -1, 1)
    assert bench.messages(1, EpochStarted)[0].batches == -1
    _read_on(bench, 1)
    assert _batches(bench, 1) == [0, 1, 2, 3]
    assert bench.messages(1, EpochEnded) == [EpochEnded(0, 1, 4)]


def test_shards_take_turns_and_each_keeps_to_its_worker() -> None:
    bench = _bench(shards=2, units=3, workers=2)
    bench.trainer(1)
    _read_on(bench, 1)
    assert _batches(bench, 1) == [0, 1, 2, 3, 4, 5]
    assert [(t.shard, t.unit) for t in _tasks(bench)][:4] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    by_shard: dict[int, set[int]] = {}
    for action in bench.done_so_far(Assign):
        if isinstance(action.task, IterateTask):
            by_shard.setdefault(action.task.shard, set()).add(action.worker)
    assert [len(workers) for workers in by_shard.values()] == [1, 1]


def test_a_worker_that_dies_is_replaced_by_one_with_the_last_state() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    bench.makes_batches = False
    bench.release(1, bench.messages(1, Announce)[0])
    (worker,) = [number for number, tasks in bench.hands.items() if tasks]
    bench.makes_batches = True
    bench.die(worker)
    retried = _tasks(bench)[-1]
    assert (retried.unit, retried.state, retried.state_unit) == (2, b"0 2", 2)
    assert _batches(bench, 1) == [0, 1, 2]


def test_an_iterator_that_ends_its_workers_gives_no_more_and_the_epoch_ends() -> None:
    bench = _bench(shards=2, units=6, workers=2)
    bench.trainer(1, prefetch=0)
    assert _batches(bench, 1) == [0, 1]
    bench.makes_batches = False
    bench.release(1, bench.messages(1, Announce)[0])  # unit 1 of shard 0 is given to a worker
    for _death in range(3):
        (worker,) = [number for number, tasks in bench.hands.items() if tasks]
        bench.die(worker)
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.batch == 2
    assert "of an iterable dataset ended its worker 3 times" in failed.failure.text
    assert "The iterator gives no more in this epoch" in failed.failure.text
    bench.makes_batches = True
    bench.say(1, Release(0, NO_SLOT, 0))
    _read_on(bench, 1)
    assert _batches(bench, 1)[1:] == [1, 3, 5, 7, 9, 11]  # the other shard's
    assert bench.messages(1, EpochEnded) == [EpochEnded(0, 1, 12)]


def test_a_trainer_that_leaves_the_window_is_refused_what_is_gone() -> None:
    bench = _bench(units=100)
    bench.trainer(1, prefetch=0)
    bench.trainer(2, prefetch=0)
    _read_on(bench, 2)
    assert _batches(bench, 2)[-1] == 4  # the last is at 2
    bench.pass_time(6)
    _read_on_to(bench, 2, 20)
    bench.release(1, bench.messages(1, Announce)[0])
    (refused,) = bench.messages(1, Refused)
    assert "batch 2 of epoch 0 of stream 's0' cannot be had any more" in refused.text
    assert "start='live'" in refused.text


def test_a_window_that_the_slots_cannot_keep_is_smaller_and_patience_ends() -> None:
    bench = _bench(units=100, slots=6, window=8)
    assert any(
        "stream 's0': window is 3 instead of 8, half of its 6 slots" in line
        and "raise streams.s0.slots to 16" in line
        for line in bench.logged()
    )
    bench.trainer(1, prefetch=0)
    bench.trainer(2, prefetch=0)
    _read_on(bench, 2)
    held_up_at = _batches(bench, 2)[-1]
    bench.pass_time(6)
    _read_on_to(bench, 2, 20)
    assert held_up_at < 6 < _batches(bench, 2)[-1]


def test_joining_at_what_is_gone_is_refused_while_others_read_and_live_is_not() -> None:
    bench = _bench(units=100)
    bench.trainer(1, prefetch=0)
    _read_on_to(bench, 1, 30)
    bench.trainer(2, prefetch=0)
    assert bench.messages(2, Refused)
    bench.trainer(3, prefetch=0, start=None)
    bench.say(3, Start(0, 1, 0, 0, where=1))  # type: ignore[arg-type]
    assert _batches(bench, 3)[0] >= 29


def test_where_nobody_reads_an_epoch_begins_anew_from_the_states_given() -> None:
    bench = _bench(units=100)
    bench.trainer(1, prefetch=0)
    _read_on_to(bench, 1, 30)
    bench.leave(1)
    bench.trainer(2, prefetch=0, start=None)
    bench.say(2, Start(0, 1, 0, 7, states=(ShardState(0, 7, b"0 7"), ShardState(9, 1, b"no"))))
    assert _batches(bench, 2)[0] == 7
    task = next(task for task in reversed(_tasks(bench)) if task.unit == 7)
    assert (task.state, task.state_unit) == (b"0 7", 7)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (settings_of(mode=Mode.QUEUE), "in mode broadcast only, not in queue"),
        (settings_of(mode=Mode.SHARD), "not in shard"),
        (settings_of(on_error=ErrorPolicy.SKIP), "set on_error: raise"),
        (settings_of(batch_size=None), "set batch_size"),
    ],
)
def test_what_an_iterable_dataset_cannot_do_closes_its_stream(settings: object, says: str) -> None:
    bench = Bench(settings, opens=False)  # type: ignore[arg-type]
    bench.event(DatasetReady("d0", None, is_iterable=True))
    assert says in bench.closed()[0]


def test_no_other_batch_size_can_be_cut_out_of_it() -> None:
    bench = _bench()
    bench.event(LeaseBegan(1))
    bench.say(1, Subscribe(0, "s0", 0, 1, 2, 0, batch_size=3))
    (refused,) = bench.messages(1, Refused)
    assert "its dataset is iterable" in refused.text


def test_numbers_behind_the_end_of_a_shard_are_holes() -> None:
    producer = Producer.at(0, 3, ())
    producer.ended(1, 1)
    assert [producer.take_next() for _ in range(5)] == [0, 1, 2, 3, 5]
    producer.ended(0, 3)
    assert producer.end is None
    producer.ended(2, 2)
    assert producer.end == 7
    assert [b for b in range(7) if producer.is_hole(b)] == [4]


def test_an_empty_iterable_ends_at_once() -> None:
    bench = _bench(units=0)
    bench.trainer(1)
    assert bench.messages(1, EpochEnded) == [EpochEnded(0, 1, 0)]
