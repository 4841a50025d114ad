"""States of loaders: what may be in them, whose is whose, and what is said of those that do not fit."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderd import resume
from loaderd.place import Place, Progress
from loaderd_protocol.codec import encode
from loaderd_protocol.errors import StateMismatch
from loaderd_protocol.messages import Dealt, Start

_FACTS = {"dataset": "rows", "samples": 100, "seed": 3}


def stream(mode: str, rank: int = 0, world_size: int = 2) -> resume.Stream:
    order = json.dumps({**_FACTS, "mode": mode})
    return resume.Stream("s", order, rank, world_size, cut_by_sampler=False)


def state(mode: str, **changed: Any) -> dict[str, Any]:
    return {
        "version": 1, "stream": "s", "order": {**_FACTS, "mode": mode}, "epoch": 1, "samples": 16,
        "batches": 2, "rank": 0, "world_size": 2, "dealt": [], "failed": [1], "done": [0, 2],
        "shards": [[0, 1, "YQ=="]], **changed,
    }  # fmt: skip


_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.binary(max_size=4) | st.sampled_from([2**31, 2**63, 2**64, 10**12, -1]),
    lambda part: st.lists(part, max_size=3) | st.tuples(part, part)
    | st.dictionaries(st.text(max_size=3), part, max_size=2),
    max_leaves=5,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    mode=st.sampled_from(["broadcast", "shard", "queue"]),
    junk=st.dictionaries(st.sampled_from(sorted(state("shard"))), _JUNK, min_size=1, max_size=2),
    ranks=st.integers(1, 3),
    world_size=st.integers(1, 3),
)
def test_a_state_with_anything_in_a_field_is_read_or_is_a_mismatch(
    mode: str, junk: dict[str, Any], ranks: int, world_size: int
) -> None:
    given_states = [{**state(mode, rank=rank), **junk} for rank in range(ranks)]
    try:
        place = resume.read_states(given_states, stream(mode, 0, world_size))
    except StateMismatch:
        return
    again = Progress(place).place()
    encode(Start(0, 1, again.epoch, 0, again.where, again.dealt, again.failed, again.done))


@pytest.mark.parametrize(
    "nothing", [None, 5, "state", b"", [], (), {}, [None], [[]], iter([]), {"order": 5}]
)
def test_what_is_no_state_is_a_mismatch(nothing: Any) -> None:
    with pytest.raises(StateMismatch, match="state"):
        resume.read_states(nothing, stream("shard"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": 7}, "has version 7, this loaderd reads 1"),
        ({"epoch": -1}, r"epoch is -1, not a number from 0 to"),
        ({"samples": True}, "samples is True, not a number"),
        ({"batches": 2**63}, "batches is 9223372036854775808"),
        ({"rank": 2}, "rank is 2, not a number from 0 to 1"),
        ({"world_size": 10**12}, "world_size is 1000000000000"),
        ({"done": [1, 2, 3]}, r"not pairs of \(first, last \+ 1\)"),
        ({"done": [4, 2]}, r"not pairs of \(first, last \+ 1\)"),
        ({"failed": ["x"]}, "failed is .*, not a list of numbers"),
        ({"dealt": [[3, [1, 2]]]}, "what each of its ranks was given"),
        ({"shards": [[0, 1, "?"]]}, "its state in base64"),
    ],
)
def test_a_field_that_cannot_be_read_is_named_with_its_value(
    changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(StateMismatch, match=says):
        resume.read_states(state("shard", **changed), stream("shard"))


class _Odd:
    """No part of JSON, and not even equal to itself in words."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ambiguous")

    __hash__ = object.__hash__


_RING: list[Any] = []
_RING.append(_RING)


@pytest.mark.parametrize("field", sorted(state("shard")))
@pytest.mark.parametrize(
    "value",
    [np.array([1, 2]), torch.ones(2), _Odd(), 10**5000, {1: torch.ones(2)}, _RING],
    ids=["array", "tensor", "odd", "huge", "inner", "ring"],
)
def test_what_json_cannot_carry_is_a_mismatch_that_names_the_field(field: str, value: Any) -> None:
    for odd in (value, [value], [[2, value]], {"seed": value}):
        with pytest.raises(StateMismatch, match=rf"{field} .*JSON|{field}.* not a list"):
            resume.read_states(state("shard", **{field: odd}), stream("shard"))


def test_what_else_lies_in_a_state_is_nobodys_business() -> None:
    own = state("shard", model=torch.ones(2), order=MappingProxyType({**_FACTS, "mode": "shard"}))
    assert resume.read_states(MappingProxyType(own), stream("shard")).samples == 16


def test_each_difference_of_the_order_is_named() -> None:
    with pytest.raises(StateMismatch) as caught:
        resume.read_states(
            state("shard", order={"seed": 4, "samples": 99, "mode": "shard", "dataset": "rows"}),
            stream("shard"),
        )
    assert "seed is 3 here and 4 in the state" in str(caught.value)
    assert "samples is 100 here and 99 in the state" in str(caught.value)
    assert "dataset" not in str(caught.value)


@pytest.mark.parametrize("mode", ["broadcast", "shard"])
def test_of_the_states_of_all_ranks_each_takes_its_own(mode: str) -> None:
    states = [state(mode, rank=rank, samples=8 * rank, batches=rank) for rank in range(2)]
    for rank in range(2):
        assert resume.read_states(states, stream(mode, rank)).samples == 8 * rank


def test_a_state_that_stands_for_another_rank_does_not_bring_that_ranks_failures() -> None:
    place = resume.read_states(state("shard", rank=1, failed=[5]), stream("shard", 0))
    assert (place.samples, place.failed) == (16, ())
    own = resume.read_states(state("shard", rank=0, failed=[5]), stream("shard", 0))
    assert own.failed == (5,)


def test_states_of_a_queue_are_put_together_and_those_of_an_earlier_epoch_left_out() -> None:
    states = [
        state("queue", rank=0, epoch=2, done=[0, 3], failed=[4]),
        state("queue", rank=1, epoch=1, done=[3, 9], failed=[7], samples=99),
        state("queue", rank=1, epoch=2, done=[3, 5], failed=[9]),
    ]
    place = resume.read_states(states, stream("queue", 1))
    assert (place.epoch, place.done, place.failed) == (2, (0, 3, 3, 5), (4, 9))
    assert place.samples == 0  # its own state is of an epoch that is over


def test_two_states_of_one_rank_cannot_be_dealt_anew() -> None:
    with pytest.raises(StateMismatch, match=r"two states of one rank: the ranks are \[0, 0, 1\]"):
        resume.read_states(
            [state("shard", rank=rank) for rank in (0, 1, 0)], stream("shard", 0, world_size=3)
        )


def test_one_state_stands_for_all_where_counts_are_equal() -> None:
    place = resume.read_states(state("shard"), stream("shard", 2, world_size=3))
    assert place == Place(1, dealt=(Dealt(2, (16, 16)),))
