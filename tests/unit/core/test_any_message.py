"""Trainers may say anything: the core never raises, and serves those who make sense all the same."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.driver import Bench, settings_of

from loaderd_protocol.messages import (
    Announce,
    Dealt,
    Done,
    EpochEnded,
    Leave,
    Release,
    ShardState,
    Start,
    Subscribe,
    Unsubscribe,
    Where,
)
from loaderd_server.core.events import DatasetReady, LeaseBegan
from loaderd_server.core.settings import Lag, Mode, Sharing

_ODD = st.sampled_from([-(2**63), -3, -1, 0, 1, 2, 3, 5, 12, 65536, 2**31 - 1, 2**62, 2**63 - 1])
_SUB = st.integers(0, 2)
_ITERATION = st.integers(-1, 9)
_FEW = st.lists(_ODD, max_size=5).map(tuple)
_DONE = st.builds(Done, _SUB, _ITERATION, _ODD, st.booleans())
_RELEASE = st.builds(Release, _SUB, _ODD, _ODD)
_SUBSCRIBE = st.builds(
    Subscribe, _SUB, st.just("s0"), st.integers(0, 2), st.integers(1, 3), st.integers(-1, 4),
    st.integers(-1, 2), st.sampled_from([-2, -1, 0, 7]), st.sampled_from([-1, 0, 1, 3, 4, 7, 64]),
    st.integers(-2, 2),
)  # fmt: skip
_START = st.builds(
    Start, _SUB, _ITERATION, st.sampled_from([-1, 0, 0, 0, 1, 2**31 - 1]), _ODD, st.sampled_from(Where),
    st.lists(st.builds(Dealt, st.integers(-1, 3), _FEW), max_size=2).map(tuple),
    _FEW, _FEW, _ODD, st.lists(st.builds(ShardState, _ODD, _ODD, st.binary(max_size=2))).map(tuple),
)  # fmt: skip
_LEAVE = st.builds(
    Leave, st.lists(_RELEASE, max_size=2).map(tuple), st.lists(_DONE, max_size=2).map(tuple)
)
_SAID = st.one_of(
    _SUBSCRIBE, _START, _START, _DONE, _RELEASE, st.builds(Unsubscribe, _SUB), st.just("release"),
    st.sampled_from(["patience", "leave"]) | _LEAVE,
)  # fmt: skip


def _do(bench: Bench, lease: int, said: object) -> int:
    """One deed of the odd trainer; its lease from then on."""
    if said == "release":
        told = bench.messages(lease, Announce)[bench.released[lease] :]
        if told:
            bench.release(lease, told[0])
    elif said == "patience":
        bench.pass_time(31.0)
    elif said == "leave" or isinstance(said, Leave):
        if isinstance(said, Leave):
            bench.say(lease, said)  # type: ignore[arg-type]
        bench.leave(lease)
        lease += 1
        bench.event(LeaseBegan(lease))
    else:
        bench.say(lease, said)  # type: ignore[arg-type]
    return lease


def _read_epoch(bench: Bench, lease: int, epoch: int) -> list[int]:
    """A sane trainer's epoch, read to its end."""
    bench.event(LeaseBegan(lease))
    bench.say(lease, Subscribe(0, "s0", 0, 1, 2, epoch))
    bench.say(lease, Start(0, 1, epoch, 0))
    while told := bench.messages(lease, Announce)[bench.released[lease] :]:
        bench.release(lease, told[0])
        bench.say(lease, Done(0, 1, bench.released[lease]))
    return [announce.batch for announce in bench.messages(lease, Announce)]


def _say_all(bench: Bench, saids: list[object]) -> None:
    """A trainer that subscribes, says all that, and leaves."""
    lease = 100
    bench.event(LeaseBegan(lease))
    bench.say(lease, Subscribe(0, "s0", 0, 1, 2, 0))
    for said in saids:
        lease = _do(bench, lease, said)
    bench.leave(lease)


@pytest.mark.parametrize("lag", list(Lag))
@pytest.mark.parametrize("mode", list(Mode))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(saids=st.lists(_SAID, max_size=25))
def test_whatever_a_trainer_says_others_are_served(
    mode: Mode, lag: Lag, saids: list[object]
) -> None:
    bench = Bench(settings_of(mode=mode, sharing=Sharing(lag, window=3)), length=40)
    bench.makes_batches = True
    _say_all(bench, saids)
    assert _read_epoch(bench, 1, 9) == list(range(10))
    assert bench.core.status().streams[0].slots_held == 0


@settings(deadline=None, max_examples=60)
@given(saids=st.lists(_SAID, max_size=25))
def test_of_an_iterable_dataset_too(saids: list[object]) -> None:
    bench = Bench(settings_of(shards=2, sharing=Sharing(window=3)), opens=False)
    bench.makes_batches = True
    bench.units = 4
    bench.event(DatasetReady("d0", None, is_iterable=True))
    _say_all(bench, saids)
    assert _read_epoch(bench, 1, 9) == list(range(8))
    assert bench.messages(1, EpochEnded)
