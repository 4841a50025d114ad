"""Where trainers begin: live, awaited, in orders of their own, in pieces of their own; or why not."""

from __future__ import annotations

import pytest
from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.messages import (
    Announce,
    Dealt,
    Done,
    EpochStarted,
    Refused,
    Start,
    Subscribe,
    Subscribed,
    Where,
)
from loaderd_server.core.actions import Assign
from loaderd_server.core.events import LeaseBegan
from loaderd_server.core.gate import Gate
from loaderd_server.core.settings import ErrorPolicy, Mode, Sharing
from loaderd_server.core.tasks import BatchTask, OrderTask


def _bench(mode: Mode = Mode.BROADCAST, sharing: Sharing | None = None, length: int = 80) -> Bench:
    bench = Bench(settings_of(mode=mode, sharing=sharing or Sharing()), length=length)
    bench.makes_batches = True
    return bench


def _asks(bench: Bench, lease: int, asked: Subscribe) -> str:
    """Subscribes; the text of the refusal, or ""."""
    bench.event(LeaseBegan(lease))
    bench.say(lease, asked)
    refused = bench.messages(lease, Refused)
    return refused[0].text if refused else ""


def test_live_is_where_the_foremost_works() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    for announce in range(6):
        bench.release(1, bench.messages(1, Announce)[announce])
    bench.trainer(2, prefetch=0)
    bench.trainer(3, start=None)
    bench.say(3, Start(0, 1, 9, 9, Where.LIVE))
    (told,) = bench.messages(3, EpochStarted)
    assert (told.epoch, told.batch) == (0, 6)
    assert bench.messages(3, Announce)[0].batch == 6


def test_live_is_the_named_place_where_nobody_is() -> None:
    bench = _bench()
    bench.trainer(1, start=None)
    bench.say(1, Start(0, 1, 2, 3, Where.LIVE))
    (told,) = bench.messages(1, EpochStarted)
    assert (told.epoch, told.batch) == (2, 3)


def test_nothing_is_made_before_the_awaited_trainers_are_there() -> None:
    bench = _bench(sharing=Sharing(await_count=2))
    bench.trainer(1)
    bench.pass_time(1000)
    assert not bench.messages(1, Announce)
    bench.trainer(2, start=None)
    assert not bench.messages(1, Announce)  # it has not started
    bench.say(2, Start(0, 1, 0, 0))
    assert [len(bench.messages(n, EpochStarted)) for n in (1, 2)] == [1, 1]
    assert bench.messages(1, Announce)
    assert bench.messages(2, Announce)
    bench.trainer(3)
    assert bench.messages(3, Announce)  # once open it stays open
    for lease in (1, 2, 3):
        bench.leave(lease)
    bench.trainer(4)
    assert not bench.messages(4, Announce)


def test_who_is_awaited_for_too_long_is_waited_for_no_more() -> None:
    bench = _bench(sharing=Sharing(await_count=3, await_timeout_s=5.0))
    bench.trainer(1)
    bench.pass_time(3)
    bench.trainer(2)
    bench.pass_time(1.9)
    assert not bench.messages(1, Announce)
    bench.pass_time(0.2)
    assert bench.messages(1, Announce)
    assert bench.messages(2, Announce)
    (line,) = [line for line in bench.logged() if "await_trainers" in line]
    assert "goes on with 2 of the 3 trainers" in line


def test_a_gate_of_one_is_always_open() -> None:
    assert Gate(0, None).is_open
    assert Gate(1, 5.0).is_open


def test_trainers_with_seeds_of_their_own_have_orders_and_keys_of_their_own() -> None:
    bench = _bench(Mode.INDEPENDENT)
    for lease, seed in ((1, 7), (2, 8), (3, -1)):
        assert _asks(bench, lease, Subscribe(0, "s0", 1, 2, 2, 0, seed)) == ""
        bench.say(lease, Start(0, 1, 0, 0))
    tasks = [action.task for action in bench.done_so_far(Assign)]
    assert {task.seed for task in tasks if isinstance(task, OrderTask)} == {0, 7, 8}
    made = {t.address.seed for t in tasks if isinstance(t, BatchTask)}
    assert made == {0, 7, 8}
    assert '"seed": 7' in bench.messages(1, Subscribed)[0].order


@pytest.mark.parametrize(
    ("own", "drop_last", "batches"), [(0, -1, 20), (3, 0, 20), (7, 1, 20), (9, 1, 18), (64, 1, 16)]
)
def test_who_cuts_batches_is_given_those_its_own_lie_in(
    own: int, drop_last: int, batches: int
) -> None:
    bench = _bench()
    asked = Subscribe(0, "s0", 0, 1, 2, 0, batch_size=own, drop_last=drop_last)
    assert _asks(bench, 1, asked) == ""
    told = bench.messages(1, Subscribed)[0]
    assert (told.batches, told.positions, told.drop_last) == (batches, 80, drop_last == 1)
    assert bench.core.status().cursors[0].credits_wanted >= 2 + -(-own // 4)


def test_a_rest_is_dealt_to_the_rank_that_asks() -> None:
    bench = _bench(Mode.SHARD, length=10)
    bench.event(LeaseBegan(1))
    bench.say(1, Subscribe(0, "s0", 1, 2, 2, 0))
    bench.say(1, Start(0, 1, 0, 0, dealt=(Dealt(3, (2, 1, 1)),)))
    assert bench.messages(1, EpochStarted)[0].positions == 3
    task = next(a.task for a in bench.done_so_far(Assign) if isinstance(a.task, BatchTask))
    assert task.indices.tolist() == [5, 7, 9]  # 0, 3, 1, 2 are over: 4 5 6 7 8 9 are left


def test_positions_that_failed_before_stay_failed() -> None:
    bench = Bench(settings_of(on_error=ErrorPolicy.SKIP), length=12)
    bench.makes_batches = True
    bench.trainer(1, start=None)
    bench.say(1, Start(0, 1, 0, 0, failed=(1, 5, 99)))
    first, second = bench.messages(1, Announce)[:2]
    assert [f.position for f in first.failed] == [1]
    assert [f.position for f in second.failed] == [5]
    assert first.rows == 3


@pytest.mark.parametrize(
    ("mode", "asked", "says"),
    [
        (Mode.BROADCAST, {"seed": 3}, "stream 's0' is broadcast, where the stream's own seed (0)"),
        (Mode.INDEPENDENT, {"seed": -2}, "seed is -2; it must be from 0"),
        (Mode.BROADCAST, {"batch_size": -1}, "batch_size is -1; it must be from 1"),
        (Mode.QUEUE, {"batch_size": 3}, "a queue hands out whole batches"),
        (Mode.QUEUE, {"drop_last": 1}, "drop_last is True, but a queue's trainers share one"),
    ],
)
def test_what_cannot_be_shared_so_is_refused_with_the_reason(
    mode: Mode, asked: dict[str, int], says: str
) -> None:
    assert says in _asks(_bench(mode), 1, Subscribe(0, "s0", 0, 1, 2, 0, **asked))


@pytest.mark.parametrize(
    ("mode", "dealt", "says"),
    [
        (Mode.BROADCAST, (Dealt(1, (1,)),), "only shard deals an epoch to ranks"),
        (Mode.SHARD, (Dealt(2, (1,)),), "does not count what each of its ranks was given"),
        (Mode.SHARD, (Dealt(1, (-1,)),), "does not count what each of its ranks was given"),
        (Mode.SHARD, (Dealt(1, (1,)),) * 65, "the world size changed 65 times"),
    ],
)
def test_a_start_that_deals_wrongly_is_refused(
    mode: Mode, dealt: tuple[Dealt, ...], says: str
) -> None:
    bench = _bench(mode)
    bench.trainer(1, start=None)
    bench.say(1, Start(0, 1, 0, 0, dealt=dealt))
    assert says in bench.messages(1, Refused)[0].text


def test_who_takes_no_more_of_an_iteration_is_made_nothing_for() -> None:
    bench = _bench()
    bench.trainer(1, prefetch=0)
    bench.say(1, Done(0, 1, 0, leaves=True))
    before = len(bench.done_so_far(Assign))
    for announce in bench.messages(1, Announce):
        bench.release(1, announce)
    assert len(bench.done_so_far(Assign)) == before
    bench.say(1, Start(0, 2, 0, 4))
    assert bench.messages(1, Announce)[-1].batch >= 4


def test_done_for_a_sub_that_is_not_there_is_a_complaint() -> None:
    bench = _bench()
    bench.trainer(1)
    bench.say(1, Done(9, 1, 1))
    bench.say(1, Done(0, 1, -1))
    assert len([line for line in bench.logged() if "which it was not given" in line]) == 2
