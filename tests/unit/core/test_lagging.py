"""Trainers that drift apart: windows, patience, and what is said of laggards."""

from __future__ import annotations

import pytest
from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.messages import Announce, Start, Subscribe
from loaderd_server.core.settings import Lag, Sharing
from loaderd_server.core.status import CoreStatus

WAIT = Sharing(Lag.WAIT, patience_s=5.0, window=3)


def _bench(sharing: Sharing = WAIT, **settings: int) -> Bench:
    bench = Bench(settings_of(sharing=sharing, slots=settings.pop("slots", 20)), length=160)
    bench.makes_batches = True
    return bench


def _batches(bench: Bench, lease: int) -> list[int]:
    return [announce.batch for announce in bench.messages(lease, Announce)]


def _release_all(bench: Bench, lease: int) -> None:
    """The trainer takes whatever comes, until nothing comes."""
    while told := bench.messages(lease, Announce)[bench.released[lease] :]:
        for announce in told:
            bench.release(lease, announce)


def _stream(status: CoreStatus) -> tuple[int, float]:
    (stream,) = status.streams
    return stream.stalls, stream.stalled_s


def test_the_foremost_stops_at_the_window_and_goes_on_as_the_last_moves() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    bench.trainer(2, prefetch=0)
    assert _batches(bench, 1) == [0, 1]  # its two credits
    _release_all(bench, 2)
    assert _batches(bench, 2) == [0, 1, 2, 3, 4]  # the last is at 2, the window has three
    bench.pass_time(2)
    bench.release(1, bench.messages(1, Announce)[0])
    assert _batches(bench, 2)[-1] == 5
    assert bench.messages(2, Announce)[-1].stalled_s == pytest.approx(2)
    stalls, stalled_s = _stream(bench.core.status())
    assert (stalls, round(stalled_s, 6)) == (2, 2.0)


def test_who_leaves_holds_nobody_back() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    bench.trainer(2, prefetch=0)
    _release_all(bench, 2)
    before = len(_batches(bench, 2))
    bench.leave(1)
    _release_all(bench, 2)
    assert before < len(_batches(bench, 2)) == 40


def test_after_the_patience_the_laggard_leaves_the_window_and_that_is_said_once() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    bench.trainer(2, prefetch=0)
    _release_all(bench, 2)
    bench.pass_time(4.9)
    assert len(_batches(bench, 2)) == 5
    bench.pass_time(0.2)
    _release_all(bench, 2)
    assert len(_batches(bench, 2)) == 40
    bench.pass_time(100)
    (line,) = [line for line in bench.logged() if "patience_s" in line]
    assert "trainer 1 of stream 's0' is 3 batches behind" in line


def test_a_laggard_that_catches_up_is_waited_for_again() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    bench.trainer(2, prefetch=0)
    _release_all(bench, 2)
    bench.pass_time(6)
    while len(_batches(bench, 2)) < 9:
        bench.release(2, bench.messages(2, Announce)[bench.released[2]])
    while _batches(bench, 1)[-1] < 8:
        bench.release(1, bench.messages(1, Announce)[bench.released[1]])
    _release_all(bench, 2)
    assert _batches(bench, 2)[-1] == _batches(bench, 1)[-1] + 3


def test_the_next_epoch_waits_for_those_who_are_still_in_this_one() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0, start=38)
    bench.trainer(2, prefetch=0, start=39)
    _release_all(bench, 2)
    bench.say(2, Start(0, 2, 1, 0))
    _release_all(bench, 2)
    epoch_1 = [a.batch for a in bench.messages(2, Announce) if a.epoch == 1]
    assert epoch_1 == [0, 1, 2]  # the other is at the end of epoch 0: three are the window
    bench.say(1, Start(0, 2, 5, 0))  # elsewhere on purpose: no laggard
    _release_all(bench, 2)
    assert len([a for a in bench.messages(2, Announce) if a.epoch == 1]) == 40


def test_in_follow_nobody_waits_and_who_is_served_again_is_told_of_once() -> None:
    bench = _bench(Sharing(), slots=8)
    bench.trainer(1, prefetch=0)
    bench.trainer(2, prefetch=0)
    _release_all(bench, 2)
    assert len(_batches(bench, 2)) == 40
    assert not any(announce.remade for announce in bench.messages(2, Announce))
    _release_all(bench, 1)
    assert _batches(bench, 1) == list(range(40))
    assert sum(announce.remade for announce in bench.messages(1, Announce)) > 20
    (line,) = [line for line in bench.logged() if "made again" in line]
    assert "trainer 1 of stream 's0' is" in line


def test_a_trainer_that_reads_two_epochs_at_once_does_not_wait_for_itself() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.say(1, Subscribe(1, "s0", 0, 1, 2, 0))
    bench.say(1, Start(1, 1, 1, 0))
    second = [a for a in bench.messages(1, Announce) if a.sub == 1]
    assert [announce.batch for announce in second][:1] == [0]
