"""A queue: each batch to one trainer, to another where that one dies before it is done."""

from __future__ import annotations

import random

import pytest
from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.messages import Announce, Done, EpochEnded, EpochStarted, Leave, Start
from loaderd_server.core.settings import Mode, Sharing


def _bench(*, redeliver: bool = True, length: int = 80, slots: int | None = None) -> Bench:
    sharing = Sharing(redeliver=redeliver)
    bench = Bench(settings_of(mode=Mode.QUEUE, sharing=sharing, slots=slots), length=length)
    bench.makes_batches = True
    return bench


def _batches(bench: Bench, lease: int) -> list[int]:
    return [announce.batch for announce in bench.messages(lease, Announce)]


def _take(bench: Bench, lease: int, count: int) -> None:
    """The trainer works through ``count`` more of what it was given."""
    for _ in range(count):
        announce = bench.messages(lease, Announce)[bench.released[lease]]
        bench.release(lease, announce)
        bench.say(lease, Done(0, announce.iteration, bench.released[lease]))


def _take_all(bench: Bench, lease: int) -> None:
    """The trainer works on until it is told of the end."""
    while not bench.messages(lease, EpochEnded):
        _take(bench, lease, 1)


def test_no_batch_goes_to_two_trainers_and_none_to_nobody() -> None:
    bench = _bench()
    draws = random.Random(3)
    for lease in (1, 2, 3):
        bench.trainer(lease)
    while not bench.messages(1, EpochEnded):
        able = [n for n in (1, 2, 3) if len(bench.messages(n, Announce)) > bench.released[n]]
        _take(bench, draws.choice(able), 1)
    assert sorted(b for lease in (1, 2, 3) for b in _batches(bench, lease)) == list(range(20))
    assert all(bench.messages(lease, EpochEnded) for lease in (1, 2, 3))
    assert bench.messages(1, EpochStarted)[0].batches == -1


def test_what_the_dead_was_not_done_with_goes_to_another() -> None:
    bench = _bench()
    bench.trainer(1)
    _take(bench, 1, 2)
    bench.leave(1)
    bench.trainer(2)
    _take_all(bench, 2)
    assert _batches(bench, 2) == list(range(2, 20))
    assert bench.core.status().streams[0].batches_redelivered == 4


def test_without_redelivery_it_is_lost_and_counted_and_the_epoch_ends() -> None:
    bench = _bench(redeliver=False)
    bench.trainer(1)
    _take(bench, 1, 2)
    bench.leave(1)
    bench.trainer(2)
    _take_all(bench, 2)
    assert _batches(bench, 2) == list(range(6, 20))
    assert bench.core.status().streams[0].batches_lost == 4


@pytest.mark.parametrize("redeliver", [True, False])
def test_who_leaves_in_order_gives_back_what_it_was_not_given_out(redeliver: bool) -> None:
    bench = _bench(redeliver=redeliver)
    bench.trainer(1)
    _take(bench, 1, 2)
    # It has the third in hand, and says so; the Done of the second may be under way.
    bench.say(1, Leave((), (Done(0, 1, 3),)))  # type: ignore[arg-type]
    bench.trainer(2)
    _take_all(bench, 2)
    assert _batches(bench, 2) == list(range(3, 20))


def test_a_new_start_is_done_with_what_it_says_and_gives_back_the_rest() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.say(1, Start(0, 2, 0, 0, count=2))
    assert _batches(bench, 1)[:4] == [0, 1, 2, 3]
    for announce in bench.messages(1, Announce)[:4]:
        bench.release(1, announce)
    assert _batches(bench, 1)[4:] == [2, 3, 4, 5]


def test_an_old_iteration_s_done_counts_for_nothing() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.say(1, Start(0, 2, 0, 0, count=0))
    bench.say(1, Done(0, 1, 4))
    bench.leave(1)
    bench.trainer(2)
    assert _batches(bench, 2)[0] == 0


def test_a_negative_count_is_done_with_nothing() -> None:
    for says in (Start(0, 2, 0, 0, count=-2), Leave((), (Done(0, 1, -2),))):
        bench = _bench()
        bench.trainer(1)
        bench.say(1, says)  # type: ignore[arg-type]
        bench.leave(1)
        bench.trainer(2)
        while not bench.messages(2, EpochEnded):
            _take(bench, 2, 1)
        assert _batches(bench, 2) == list(range(20))


def test_batches_done_before_the_daemon_was_there_are_not_given_again() -> None:
    bench = _bench()
    bench.trainer(1, start=None)
    bench.say(1, Start(0, 1, 0, 0, done=(0, 7, 9, 12, 500, 900)))
    assert _batches(bench, 1)[:2] == [7, 8]
    _take_all(bench, 1)
    assert _batches(bench, 1) == [7, 8, *range(12, 20)]


def test_an_epoch_that_is_over_stays_over_and_the_next_is_the_live_one() -> None:
    bench = _bench(length=8)
    bench.trainer(1)
    _take(bench, 1, 2)
    assert bench.messages(1, EpochEnded)
    bench.trainer(2)
    assert (_batches(bench, 2), len(bench.messages(2, EpochEnded))) == ([], 1)
    bench.trainer(3, start=None)
    bench.say(3, Start(0, 1, 0, 0, where=1))  # type: ignore[arg-type]
    assert bench.messages(3, EpochStarted)[0].epoch == 1
    assert _batches(bench, 3) == [0, 1]


def test_an_unfinished_epoch_is_kept_while_nobody_is_there() -> None:
    bench = _bench()
    bench.trainer(1)
    _take(bench, 1, 5)
    bench.leave(1)
    for lease in range(2, 12):  # other epochs come and go
        bench.trainer(lease, start=None)
        bench.say(lease, Start(0, 1, lease, 0))
        bench.leave(lease)
    bench.trainer(20, start=None)
    bench.say(20, Start(0, 1, 0, 0, where=1))  # type: ignore[arg-type]
    assert _batches(bench, 20)[0] == 5
