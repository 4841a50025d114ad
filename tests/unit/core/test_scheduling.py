"""Which batch is made next, in which slot, and which batch makes room."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.messages import Announce, Release, Start, Unsubscribe
from loaderd_server.core.actions import Assign
from loaderd_server.core.events import LeaseEnded
from loaderd_server.core.scheduler import slot_for
from loaderd_server.core.tasks import BatchTask


def _made(bench: Bench) -> list[int]:
    tasks = [action.task for action in bench.done_so_far(Assign)]
    return [task.address.batch for task in tasks if isinstance(task, BatchTask)]


def _release_all(bench: Bench, lease: int) -> None:
    """Releases what is out, until nothing more comes."""
    done = 0
    while done < len(bench.messages(lease, Announce)):
        announce = bench.messages(lease, Announce)[done]
        bench.say(lease, Release(announce.sub, announce.slot, announce.generation))
        done += 1


def test_trainers_at_the_same_place_share_one_batch_in_one_slot() -> None:
    bench = Bench(settings_of())
    bench.makes_batches = True
    for lease in (1, 2, 3):
        bench.trainer(lease)
    assert _made(bench) == [0, 1, 2]
    slots = {a.slot for lease in (1, 2, 3) for a in bench.messages(lease, Announce)}
    assert len(slots) == 3


def test_a_late_joiner_gets_what_is_still_in_its_slots_without_any_work() -> None:
    bench = Bench(settings_of(), length=40)
    bench.makes_batches = True
    bench.trainer(1)
    _release_all(bench, 1)
    bench.trainer(2)
    _release_all(bench, 2)
    assert _made(bench) == list(range(10))
    assert bench.core.status().streams[0].batches_remade == 0


def test_a_trainer_outside_the_window_has_the_same_batches_made_again() -> None:
    bench = Bench(settings_of(slots=6), length=80)
    bench.makes_batches = True
    bench.trainer(1)
    _release_all(bench, 1)
    bench.say(1, Unsubscribe(0))
    bench.trainer(2)
    _release_all(bench, 2)
    assert [a.batch for a in bench.messages(2, Announce)] == list(range(20))
    assert bench.core.status().streams[0].batches_remade > 10


def test_nobody_makes_more_than_credits_allow() -> None:
    bench = Bench(settings_of(), length=400)
    bench.makes_batches = True
    bench.trainer(1, prefetch=1)
    assert _made(bench) == [0, 1, 2]


def test_the_trainer_that_has_least_goes_first() -> None:
    bench = Bench(settings_of(), length=400)
    bench.trainer(1)
    for _ in range(3):
        bench.make()
    bench.trainer(2, start=50)
    bench.make()
    assert bench.batch_task()[1].address.batch == 50


def test_trainers_at_different_places_are_served_in_turn() -> None:
    bench = Bench(settings_of(), length=400)
    bench.trainer(1, start=0)
    bench.trainer(2, start=50)
    order = []
    for _ in range(6):
        order.append(bench.make().address.batch)
    assert sorted(order[:2]) == [0, 50]
    assert sorted(order[:4]) == [0, 1, 50, 51]


@pytest.mark.parametrize("slots", [5, 6, 9])
def test_a_trainer_that_stops_for_ever_does_not_stop_the_others(slots: int) -> None:
    bench = Bench(settings_of(slots=slots), length=400)
    bench.makes_batches = True
    bench.trainer(1, prefetch=0, start=30)
    bench.trainer(2)
    bench.pass_time(30)
    _release_all(bench, 2)
    assert bench.messages(2, Announce)[-1].batch == 99


def test_the_batch_whose_next_use_is_farthest_makes_room() -> None:
    bench = Bench(settings_of(slots=6), length=400)
    bench.makes_batches = True
    bench.trainer(1, prefetch=0)
    _release_all_until(bench, 1, 4)
    bench.trainer(2, prefetch=0)  # is at batch 0, and comes to all that is kept
    stream = bench.core._streams["s0"]
    cursor = next(c for c in stream.cursors if c.lease == 2)
    kept = {slot.batch for slot in stream.pool.idle.values() if slot.batch >= cursor.position}
    _fill_what_is_free(bench)
    assert slot_for(stream, 8192) is not None
    left = {slot.batch for slot in stream.pool.idle.values()}
    assert kept - left == {max(kept)}


def _fill_what_is_free(bench: Bench) -> None:
    stream = bench.core._streams["s0"]
    epoch = next(iter(stream.sequences.values())).epochs[(0, ())]
    while (slot := stream.pool.free_slot(8192)) is not None:
        stream.pool.fill(slot, epoch, 90 + slot.number)


def test_what_nobody_comes_to_any_more_goes_before_what_someone_does() -> None:
    bench = Bench(settings_of(slots=6), length=400)
    bench.makes_batches = True
    bench.trainer(1, prefetch=0, start=0)
    _release_all_until(bench, 1, 4)
    stream = bench.core._streams["s0"]
    before = {slot.batch for slot in stream.pool.idle.values()}
    _fill_what_is_free(bench)
    assert slot_for(stream, 8192) is not None
    gone = before - {slot.batch for slot in stream.pool.idle.values()}
    assert gone == {min(before)}


def _release_all_until(bench: Bench, lease: int, batch: int) -> None:
    for announce in list(bench.messages(lease, Announce)):
        bench.say(lease, Release(announce.sub, announce.slot, announce.generation))
    while bench.messages(lease, Announce)[-1].batch < batch:
        announce = bench.messages(lease, Announce)[-1]
        bench.say(lease, Release(announce.sub, announce.slot, announce.generation))


def test_a_slot_that_fills_for_somebody_who_left_is_had_when_its_worker_answers() -> None:
    bench = Bench(settings_of(slots=3, depth=5), length=400)
    bench.trainer(1, prefetch=0)
    for iteration, start in ((2, 10), (3, 20), (4, 30)):
        bench.say(1, Start(0, iteration, 0, start))
    assert _made(bench) == [0, 10, 20]  # every slot is being filled for nobody
    bench.make()
    assert _made(bench) == [0, 10, 20, 30]
    for _ in range(3):
        bench.make()
    assert bench.messages(1, Announce)[0].batch == 30


def test_two_streams_of_a_dataset_share_its_workers() -> None:
    settings = settings_of(streams=2)
    second = dataclasses.replace(settings.streams[1], dataset="d0")
    bench = Bench(dataclasses.replace(settings, streams=(settings.streams[0], second)), length=400)
    bench.trainer(1, "s0")
    bench.trainer(2, "s1")
    made = [bench.make().address.stream for _ in range(6)]
    assert made.count("s0") == made.count("s1") == 3


def test_the_same_events_lead_to_the_same_actions() -> None:
    def play() -> list[str]:
        bench = Bench(settings_of(workers=3, depth=2, slots=9), length=200)
        bench.makes_batches = True
        for lease in (1, 2, 3):
            bench.trainer(lease, start=lease)
        _release_all(bench, 2)
        bench.event(LeaseEnded(1))
        _release_all(bench, 3)
        return [repr(action) for action in bench.actions]

    assert play() == play()


def test_what_is_remembered_of_trainers_gone_is_bounded() -> None:
    bench = Bench(settings_of(slots=12), length=40)
    bench.makes_batches = True
    for lease in range(1, 60):
        bench.trainer(lease, start=None)
        bench.say(lease, Start(0, 1, lease * 3, 0))
        bench.leave(lease)
    stream = bench.core._streams["s0"]
    assert not stream.cursors
    assert len(stream.orders.ready) <= 3
    assert sum(len(sequence.epochs) for sequence in stream.sequences.values()) <= 5
