"""What trainers ask for that cannot be: each fault has a text with the value and the bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.core.driver import settings_of

from loaderd_protocol.messages import Dealt, Start, Subscribe
from loaderd_server.core.places import (
    cut_of,
    fault_of_cut,
    fault_of_sharing,
    fault_of_start,
    wanted_credits,
    why_uncuttable,
)
from loaderd_server.core.sequences import Cut
from loaderd_server.core.settings import Mode
from loaderd_server.core.streams import Stream

ASKED = Subscribe(0, "s0", 0, 1, 2, 0)


def _asked(**asked: int) -> Subscribe:
    return Subscribe(0, "s0", 0, 1, 2, 0, **asked)


def _stream(mode: Mode = Mode.BROADCAST, **settings: object) -> Stream:
    made = settings_of(mode=mode, **settings)  # type: ignore[arg-type]
    return Stream(made.streams[0], 1, 1 << 30)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (Start(0, 1, -1, 0), "epochs count from 0 to 2147483647, batches from 0"),
        (Start(0, 1, 2**31, 0), "epochs count from 0 to 2147483647, batches from 0"),
        (Start(0, 1, 0, -1), "epochs count from 0 to 2147483647, batches from 0"),
        (Start(0, 1, 0, 0, dealt=(Dealt(1, (1,)),) * 65), "changed 65 times in it, over 64"),
        (Start(0, 1, 0, 0, dealt=(Dealt(65537, ()),)), "dealt to 65537 ranks, over 65536"),
        (Start(0, 1, 0, 0, dealt=(Dealt(2, (1,)),)), "Dealt(world_size=2, counts=(1,)) does not"),
        (Start(0, 1, 0, 0, dealt=(Dealt(1, (-1,)),)), "what each of its ranks was given"),
        (Start(0, 1, 0, 0, dealt=(Dealt(0, ()),)), "what each of its ranks was given"),
        (Start(0, 1, 0, 0, dealt=(Dealt(-1, ()),)), "what each of its ranks was given"),
    ],
)
def test_a_start_that_cannot_be(start: Start, says: str) -> None:
    assert says in (fault_of_start(start, Mode.SHARD) or "")


@pytest.mark.parametrize("mode", [m for m in Mode if m is not Mode.SHARD])
def test_only_shard_deals_an_epoch(mode: Mode) -> None:
    start = Start(0, 1, 0, 0, dealt=(Dealt(1, (1,)),))
    assert fault_of_start(start, mode) == (
        f"the stream is {mode.value}: only shard deals an epoch to ranks"
    )
    assert fault_of_start(start, Mode.SHARD) is None
    assert fault_of_start(replace(start, dealt=()), mode) is None


@pytest.mark.parametrize(
    ("mode", "asked", "says"),
    [
        (Mode.INDEPENDENT, {"seed": -2}, "seed is -2; it must be from 0 to 9223372036854775807"),
        (Mode.INDEPENDENT, {"seed": 2**63}, "seed is 9223372036854775808; it must be from 0"),
        (Mode.SHARD, {"seed": 7}, "seed is 7, but stream 's0' is shard"),
        (Mode.BROADCAST, {"batch_size": -1}, "batch_size is -1; it must be from 1 to 1048576"),
        (Mode.BROADCAST, {"batch_size": 2**20 + 1}, "batch_size is 1048577; it must be from 1"),
        (Mode.QUEUE, {"drop_last": 1}, "drop_last is True, but a queue's trainers share one"),
        (Mode.QUEUE, {"batch_size": 5}, "a queue hands out whole batches. Leave batch_size out"),
    ],
)
def test_a_way_to_share_that_cannot_be(mode: Mode, asked: dict[str, int], says: str) -> None:
    assert says in (fault_of_sharing(_asked(**asked), _stream(mode)) or "")


@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        (Mode.INDEPENDENT, {"seed": 0}),
        (Mode.INDEPENDENT, {"seed": 2**63 - 1}),
        (Mode.BROADCAST, {"batch_size": 2**20, "drop_last": 1}),
        (Mode.QUEUE, {"batch_size": 4, "drop_last": 0}),
    ],
)
def test_what_can_be_has_no_fault(mode: Mode, asked: dict[str, int]) -> None:
    assert fault_of_sharing(_asked(**asked), _stream(mode)) is None


def test_batches_of_a_sampler_are_not_cut_but_taken_as_they_are() -> None:
    stream = _stream(batch_size=None)
    assert why_uncuttable(stream) == "its sampler makes the batches"
    assert "cut to batch_size 3: its sampler" in (fault_of_cut(stream, Cut(3)) or "")
    assert fault_of_cut(stream, Cut()) is None


def test_the_dataset_may_say_why_it_cannot_be_cut() -> None:
    stream = _stream()
    stream.uncuttable = "its rows are padded"
    assert fault_of_cut(stream, Cut(3)) == (
        "stream 's0' cannot be cut to batch_size 3: its rows are padded. Leave batch_size out, or "
        "define a stream of that batch size"
    )


def test_the_stream_s_own_size_is_no_cut() -> None:
    assert cut_of(_stream(), replace(ASKED, batch_size=4)) == Cut(0, drop_last=False)
    assert cut_of(_stream(drop_last=True), ASKED) == Cut(0, drop_last=True)
    assert cut_of(_stream(drop_last=True), replace(ASKED, drop_last=0)) == Cut(0, drop_last=False)


@pytest.mark.parametrize(
    ("own", "prefetch", "slots"), [(0, 2, 4), (3, 0, 3), (4, 0, 3), (5, 0, 4), (64, 0, 18)]
)
def test_credits_cover_every_slot_that_a_batch_may_lie_in(
    own: int, prefetch: int, slots: int
) -> None:
    assert wanted_credits(_stream(), prefetch, Cut(own)) == slots
