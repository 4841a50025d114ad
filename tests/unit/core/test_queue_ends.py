"""The end of a queue's epoch: told when every batch is done, and who keeps it waiting is said once."""

from __future__ import annotations

from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.messages import Announce, Done, EpochEnded
from loaderd_server.core.settings import Mode


def _bench() -> Bench:
    bench = Bench(settings_of(mode=Mode.QUEUE, workers=1), length=12)
    bench.makes_batches = True
    return bench


def _done(bench: Bench, lease: int) -> None:
    told = bench.messages(lease, Announce)
    bench.say(lease, Done(0, told[-1].iteration, len(told)))


def test_the_epoch_ends_for_all_when_the_last_batch_is_done() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.trainer(2)
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 1, 2]  # it came first
    bench.say(1, Done(0, 1, 2))
    assert not bench.messages(2, EpochEnded)
    bench.say(1, Done(0, 1, 3))
    assert [len(bench.messages(lease, EpochEnded)) for lease in (1, 2)] == [1, 1]


def test_who_keeps_the_end_of_a_queue_waiting_is_said_once_after_the_patience() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.trainer(2, start=0)
    for lease in (1, 2):
        for announce in bench.messages(lease, Announce):
            bench.release(lease, announce)
    busy = max((1, 2), key=lambda lease: len(bench.messages(lease, Announce)))
    idle = 3 - busy
    if bench.messages(idle, Announce):
        _done(bench, idle)
    bench.pass_time(29)
    assert not [line for line in bench.logged() if "waits" in line]
    bench.pass_time(100)
    (line,) = [line for line in bench.logged() if "waits" in line]
    assert f"trainers [{busy}] have" in line
    assert f"trainers [{idle}] nothing to do" in line


def test_who_comes_after_the_patience_is_told_of_too() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.pass_time(100)  # nobody waits for it
    assert not [line for line in bench.logged() if "waits" in line]
    bench.trainer(2)
    bench.pass_time(100)
    (line,) = [line for line in bench.logged() if "waits" in line]
    assert "trainers [1] have 3 batches" in line


def test_the_patience_begins_anew_when_batches_were_there_again() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.pass_time(29)
    bench.leave(1)  # it died: three batches wait again
    bench.trainer(2)
    bench.trainer(3)
    bench.pass_time(29)
    assert not [line for line in bench.logged() if "waits" in line]
    bench.pass_time(2)
    assert len([line for line in bench.logged() if "waits" in line]) == 1
