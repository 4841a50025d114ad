"""What trainers say: order of messages, new starts, wrong messages, ends."""

from __future__ import annotations

import pytest
from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    Dealt,
    EpochStarted,
    Granted,
    Refused,
    Release,
    Start,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from loaderd_server.core.actions import Assign, MakeArena
from loaderd_server.core.events import DatasetReady, LeaseBegan
from loaderd_server.core.settings import Mode
from loaderd_server.core.tasks import OrderTask

_HUGE = 2**63 - 1


def _bench(**settings: object) -> Bench:
    bench = Bench(settings_of(**settings))  # type: ignore[arg-type]
    bench.makes_batches = True
    return bench


def _release(announce: Announce) -> Release:
    return Release(announce.sub, announce.slot, announce.generation)


def test_batches_come_in_order_each_for_a_credit() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    kinds = [type(message) for message in bench.told[1]]
    assert kinds == [Subscribed, EpochStarted, Announce, Announce]
    bench.say(1, _release(bench.messages(1, Announce)[0]))
    assert [announce.batch for announce in bench.messages(1, Announce)] == [0, 1, 2]


def test_subscribed_tells_the_shape_of_the_stream() -> None:
    bench = _bench(drop_last=True)
    bench.trainer(1, start=None)
    (told,) = bench.messages(1, Subscribed)
    order = '{"mode": "broadcast", "seed": 0, "samples": 12}'
    assert told == Subscribed(0, "broadcast", 12, 3, 4, True, 4, 12, order, "")


def test_a_start_that_comes_with_the_subscribe_is_carried_out_after_it() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.makes_batches = True
    bench.trainer(1)
    bench.event(DatasetReady("d0", 12))
    assert [type(m) for m in bench.told[1][:3]] == [Subscribed, EpochStarted, Announce]


def test_the_order_of_a_later_epoch_is_made_before_its_length_is_told() -> None:
    bench = _bench()
    bench.event(LeaseBegan(1))
    bench.say(1, Subscribe(0, "s0", 0, 1, 2, 7))
    assert bench.messages(1, Subscribed)[0].batches == 3
    orders = [a.task.epoch for a in bench.done_so_far(Assign) if isinstance(a.task, OrderTask)]
    assert orders == [0, 7]


def test_the_next_epoch_s_order_is_made_ahead_and_once() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.trainer(2)
    orders = [a.task.epoch for a in bench.done_so_far(Assign) if isinstance(a.task, OrderTask)]
    assert orders == [0, 1]


def test_a_new_start_replaces_the_iteration_and_what_was_told_stays_out() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    first = bench.messages(1, Announce)
    bench.say(1, Start(0, 2, 0, 1))
    assert len(bench.messages(1, Announce)) == 2
    for announce in first:
        bench.say(1, _release(announce))
    again = bench.messages(1, Announce)[2:]
    assert [(a.iteration, a.batch) for a in again] == [(2, 1), (2, 2)]


def test_a_batch_announced_twice_is_free_after_two_releases() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=2)
    bench.say(1, Start(0, 2, 0, 0))
    twice = [a for a in bench.messages(1, Announce) if a.batch == 0]
    assert len(twice) == 2
    assert twice[0].slot == twice[1].slot
    bench.say(1, _release(twice[0]))
    assert bench.core.status().streams[0].slots_held >= 1
    for announce in bench.messages(1, Announce)[1:]:
        bench.say(1, _release(announce))
    for announce in bench.messages(1, Announce)[4:]:
        bench.say(1, _release(announce))
    assert bench.core.status().streams[0].slots_held == 0


def test_start_at_the_end_announces_nothing() -> None:
    bench = _bench()
    bench.trainer(1, start=3)
    assert bench.messages(1, EpochStarted)
    assert not bench.messages(1, Announce)


@pytest.mark.parametrize("start", [(0, 4), (0, -1), (-1, 0), (_HUGE, 0), (0, _HUGE)])
def test_a_start_outside_the_epoch_is_refused(start: tuple[int, int]) -> None:
    bench = _bench()
    bench.trainer(1, start=None)
    bench.say(1, Start(0, 1, *start))
    (refused,) = bench.messages(1, Refused)
    assert refused.code == ErrorCode.REFUSED
    assert f"batch {start[1]} of epoch {start[0]}" in refused.text


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (Subscribe(0, "s0", 0, 1, -1, 0), "prefetch is -1"),
        (Subscribe(0, "s0", 0, 1, 2, -1), "epoch is -1"),
        (Subscribe(0, "s0", 0, 1, 2, _HUGE), "epoch is"),
        (Subscribe(0, "s0", 2, 2, 2, 0), "rank is 2; with world_size 2"),
        (Subscribe(0, "s0", -1, 2, 2, 0), "rank is -1"),
        (Subscribe(0, "s0", 0, 0, 2, 0), "world_size is 0"),
        (Subscribe(0, "s0", 0, _HUGE, 2, 0), "world_size is"),
    ],
)
def test_a_wrong_subscribe_is_refused_with_what_is_wrong(asked: Subscribe, what: str) -> None:
    bench = _bench(mode=Mode.SHARD)
    bench.event(LeaseBegan(1))
    bench.say(1, asked)
    (refused,) = bench.messages(1, Refused)
    assert refused.code == ErrorCode.REFUSED
    assert what in refused.text


def test_rank_and_world_size_do_not_count_in_broadcast() -> None:
    bench = _bench()
    bench.event(LeaseBegan(1))
    bench.say(1, Subscribe(0, "s0", -5, _HUGE, 2, 0))
    assert bench.messages(1, Subscribed)


def test_a_huge_prefetch_is_cut_to_what_is_sane() -> None:
    bench = _bench()
    bench.event(LeaseBegan(1))
    bench.say(1, Subscribe(0, "s0", 0, 1, _HUGE, 0))
    told = [m.credits for m in bench.told[1] if isinstance(m, (Subscribed, Granted))]
    assert told[-1] == 66


def test_ranks_share_a_sequence_and_each_reads_its_own() -> None:
    bench = _bench(mode=Mode.SHARD)
    for lease, rank in ((1, 0), (2, 1), (3, 1)):
        bench.event(LeaseBegan(lease))
        bench.say(lease, Subscribe(0, "s0", rank, 2, 2, 0))
        bench.say(lease, Start(0, 1, 0, 0))
    assert bench.core.status().streams[0].batches_made == 4
    slots = [{a.slot for a in bench.messages(lease, Announce)} for lease in (1, 2, 3)]
    assert slots[1] == slots[2]
    assert not slots[0] & slots[1]


@pytest.mark.parametrize(
    "nonsense",
    [
        Release(0, 0, 99),
        Release(0, NO_SLOT, 0),
        Release(5, 0, 1),
        Release(-1, -1, -1),
        Start(9, 1, 0, 0),
        Start(0, 0, 0, 0),
        Unsubscribe(9),
        Subscribe(0, "s0", 0, 1, 2, 0),
    ],
)
def test_nonsense_is_logged_and_changes_nothing(nonsense: Release | Start | Unsubscribe) -> None:
    bench = _bench()
    bench.trainer(1)
    before, told = bench.core.status(), list(bench.told[1])
    bench.say(1, nonsense)
    assert bench.core.status() == before
    assert bench.told[1] == told
    assert "trainer 1" in bench.logged()[-1]


def test_nonsense_is_logged_a_few_times_only() -> None:
    bench = _bench()
    bench.trainer(1)
    for _ in range(100):
        bench.say(1, Unsubscribe(9))
    assert len(bench.logged()) == 3
    assert "further ones are not logged" in bench.logged()[-1]


def test_a_trainer_cannot_release_what_another_holds() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.trainer(2)
    announce = bench.messages(1, Announce)[0]
    bench.leave(2)
    bench.event(LeaseBegan(3))
    bench.say(3, _release(announce))
    assert bench.core.status().streams[0].slots_held == 3


def test_last_words_after_the_end_of_the_lease_are_ignored() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.leave(1)
    assert bench.say(1, Start(0, 2, 0, 0)) == []


def test_unsubscribed_is_the_last_message_and_the_number_is_free_again() -> None:
    bench = _bench()
    bench.trainer(1)
    out = bench.messages(1, Announce)
    bench.say(1, Unsubscribe(0))
    assert isinstance(bench.told[1][-1], Unsubscribed)
    assert bench.core.status().streams[0].slots_held == len(out)
    bench.say(1, Subscribe(0, "s0", 0, 1, 2, 0))
    for announce in out:
        bench.say(1, _release(announce))
    status = bench.core.status()
    assert status.streams[0].slots_held == 0
    assert status.cursors[0].credits_outstanding == 0


def test_the_end_of_a_lease_frees_all_it_held_at_once() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.say(1, Unsubscribe(0))
    bench.say(1, Subscribe(1, "s0", 0, 1, 2, 0))
    bench.say(1, Start(1, 1, 0, 0))
    assert bench.core.status().streams[0].slots_held > 0
    bench.leave(1)
    status = bench.core.status()
    assert (status.streams[0].slots_held, status.cursors) == (0, ())


def test_too_many_subscriptions_of_one_trainer_are_refused() -> None:
    bench = _bench(slots=500)
    bench.event(LeaseBegan(1))
    for sub in range(70):
        bench.say(1, Subscribe(sub, "s0", 0, 1, 0, 0))
    assert len(bench.messages(1, Subscribed)) == 64
    assert all("64 subscriptions" in refused.text for refused in bench.messages(1, Refused))


def test_a_fifth_trainer_makes_an_auto_sized_stream_grow() -> None:
    bench = _bench()
    for lease in range(1, 6):
        bench.trainer(lease)
    arenas = bench.done_so_far(MakeArena)
    assert [arena.count for arena in arenas] == [18, 4]
    assert bench.messages(5, Subscribed)[0].credits == 4


def test_where_growth_is_refused_the_newcomer_takes_from_others_prefetch() -> None:
    bench = _bench()
    bench.arena_refusal = lambda _: "no memory"
    for lease in range(1, 5):
        bench.trainer(lease, start=None)
    bench.trainer(5, start=None)
    status = bench.core.status()
    assert sum(cursor.credits_granted for cursor in status.cursors) == 16
    assert min(cursor.credits_granted for cursor in status.cursors) == 3
    assert bench.messages(1, Granted) or bench.messages(4, Granted)


def test_a_newcomer_without_room_is_refused_with_the_numbers() -> None:
    bench = _bench(slots=3)
    bench.trainer(1)
    bench.trainer(2)
    (refused,) = bench.messages(2, Refused)
    assert refused.code == ErrorCode.REFUSED
    for number in ("3 slots", "1 workers", "1 trainers", "streams.s0.slots"):
        assert number in refused.text


def test_a_newcomer_that_others_leave_no_credit_is_refused_after_a_while() -> None:
    bench = _bench(slots=6)
    bench.trainer(1)
    bench.trainer(2)
    assert not bench.told[2]
    bench.pass_time(11)
    assert "1 trainers have or need 4 of them" in bench.messages(2, Refused)[0].text


def test_a_trainer_that_keeps_views_goes_on_after_a_newcomer_lowered_its_credits() -> None:
    bench = _bench(slots=6)
    bench.length = 400
    bench.trainer(1, prefetch=2)
    bench.say(1, Start(0, 2, 1, 0))
    for announce in bench.messages(1, Announce)[:2]:
        bench.say(1, _release(announce))
    bench.trainer(2)
    before = len(bench.messages(1, Announce))
    bench.say(1, _release(bench.messages(1, Announce)[-1]))
    bench.pass_time(6)
    assert len(bench.messages(1, Announce)) > before


def test_credits_rise_again_when_a_trainer_leaves() -> None:
    bench = _bench(slots=8)
    bench.trainer(1, start=None)
    bench.trainer(2, start=None)
    bench.leave(2)
    assert bench.messages(1, Granted)[-1].credits == 4


def test_others_releases_do_not_keep_help_from_a_trainer_that_is_stranded() -> None:
    bench = _bench(slots=8)
    bench.length = 400
    bench.trainer(1, prefetch=4, start=None)
    bench.say(1, Start(0, 1, 1, 0))
    bench.trainer(2, prefetch=4, start=None)
    for announce in bench.messages(1, Announce)[1:3]:
        bench.release(1, announce)
    bench.say(2, Start(0, 1, 1, 0))
    before = len(bench.messages(1, Announce))
    for _ in range(80):
        bench.pass_time(0.1)
        for announce in bench.messages(2, Announce)[bench.released[2] :]:
            bench.release(2, announce)
    assert bench.core.status().cursors[0].credits_wanted > bench.messages(1, Granted)[0].credits
    assert len(bench.messages(1, Announce)) > before


def test_a_trainer_that_asks_for_epochs_and_leaves_does_not_fill_the_queue() -> None:
    bench = Bench(settings_of())
    bench._work = lambda worker: None  # type: ignore[method-assign]
    bench.event(LeaseBegan(1))
    for epoch in range(1, 500):
        bench.say(1, Subscribe(0, "s0", 0, 1, 2, epoch))
        bench.say(1, Unsubscribe(0))
    assert bench.core._dispatcher.teams["d0"].waiting < 20
    bench.say(1, Subscribe(0, "s0", 0, 1, 2, 1000))
    del bench._work
    worker, (task, *_) = next((w, t) for w, t in bench.hands.items() if t)
    assert isinstance(task, OrderTask)
    bench.answer(worker, bench.order(task))
    assert bench.messages(1, Subscribed)[-1].batches == 3


def test_a_start_after_more_ranks_than_there_can_be_is_refused() -> None:
    bench = _bench(mode=Mode.SHARD)
    bench.trainer(1, start=None)
    bench.say(1, Start(0, 1, 0, 0, dealt=(Dealt(65537, (0,) * 65537),)))
    (refused,) = bench.messages(1, Refused)
    assert "it was dealt to 65537 ranks, over 65536" in refused.text
