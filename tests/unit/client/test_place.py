"""Places: where a trainer begins, how far it is, and what goes into a state of it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd import arguments
from loaderd.place import Place, Progress, Ranges, first_place
from loaderd.resume import Stream, read_states, write_state
from loaderd_protocol.errors import StateMismatch
from loaderd_protocol.messages import Dealt, FailedSample, ShardState, Where

ORDER = '{"dataset": "m:D", "mode": "%s", "seed": 3, "samples": 100}'


def stream(mode: str = "broadcast", rank: int = 0, world_size: int = 1) -> Stream:
    return Stream("train", ORDER % mode, rank, world_size, cut_by_sampler=False)


@given(st.lists(st.integers(0, 40)))
def test_ranges_hold_what_was_added_and_are_as_few_as_can_be(numbers: list[int]) -> None:
    ranges = Ranges()
    for number in numbers:
        ranges.add(number)
    bounds = ranges.bounds()
    pairs = list(zip(bounds[::2], bounds[1::2], strict=True))
    assert {n for first, end in pairs for n in range(first, end)} == set(numbers)
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(pairs))
    assert Ranges(bounds).bounds() == bounds


def test_where_a_loader_begins() -> None:
    assert first_place(None, "broadcast", 8) == first_place("begin", "queue", 8) == Place()
    assert (
        first_place(None, "queue", 8) == first_place("live", "shard", 8) == Place(where=Where.LIVE)
    )
    assert first_place((3, 5), "shard", 8) == Place(3, 40, 5)


@pytest.mark.parametrize(
    "start", ["end", (1,), (1, 2, 3), (-1, 0), (0, -1), (0.5, 1), (True, 1), 7]
)
def test_a_start_that_is_none_is_refused_with_its_value(start: Any) -> None:
    with pytest.raises(
        (ValueError, TypeError), match=r'it is "begin", "live", or \(epoch, batch\)'
    ):
        arguments.start(start)


def test_progress_tells_the_place_as_of_what_was_given_out() -> None:
    progress = Progress(Place(2, 16, 2, failed=(1,), done=(0, 2)))
    progress.samples, progress.batches = 24, 3
    progress.report((FailedSample(20, 7, "bad"),))
    progress.was_given(2)
    assert progress.place() == Place(2, 24, 3, failed=(1, 20), done=(0, 3))
    progress.is_finished = True
    assert progress.place() == Place(3)


def test_who_joined_live_has_a_place_of_its_own_from_then_on() -> None:
    progress = Progress(Place(where=Where.LIVE))
    assert progress.is_to_be_found
    progress.found(4, 48, 6)
    assert not progress.is_to_be_found
    assert progress.place() == Place(4, 48, 6)


@given(
    st.builds(
        Place, st.integers(0, 2**31 - 1), st.integers(0, 2**40), st.integers(0, 2**40),
        st.just(Where.EXACT),
        st.lists(st.integers(0, 99).map(lambda n: Dealt(1, (n,))), max_size=3).map(tuple),
        st.lists(st.integers(0, 99), max_size=5).map(tuple), st.just(()),
        st.lists(st.builds(ShardState, st.integers(0, 3), st.integers(0, 9), st.binary()), max_size=2)
        .map(tuple),
    )
)  # fmt: skip
def test_a_state_goes_through_json_and_back(place: Place) -> None:
    ours = stream("shard")
    assert read_states(json.loads(json.dumps(write_state(place, ours))), ours) == place


def test_a_state_is_small_and_names_what_it_is_about() -> None:
    state = write_state(Place(1, 64, 2), stream())
    assert state == {
        "version": 1, "stream": "train", "epoch": 1, "samples": 64, "batches": 2,
        "rank": 0, "world_size": 1,
        "order": {"dataset": "m:D", "mode": "broadcast", "seed": 3, "samples": 100},
    }  # fmt: skip


def test_each_difference_is_named() -> None:
    other = Stream(
        "train", '{"dataset": "m:E", "mode": "broadcast", "seed": 4, "samples": 100}', 0, 1,
        cut_by_sampler=False,
    )  # fmt: skip
    with pytest.raises(StateMismatch) as caught:
        read_states(write_state(Place(), stream()), other)
    text = str(caught.value)
    assert "dataset is 'm:E' here and 'm:D' in the state" in text
    assert "seed is 4 here and 3 in the state" in text
    assert "samples" not in text.replace("stream", "")


def states(counts: list[int], epoch: int = 1) -> list[dict[str, Any]]:
    """One of each rank, after so many samples."""
    world = len(counts)
    return [
        write_state(Place(epoch, count, 0), stream("shard", rank, world))
        for rank, count in enumerate(counts)
    ]


def test_the_rest_is_dealt_anew_from_all_states_in_any_order() -> None:
    given_states = states([8, 8, 4])
    place = read_states(given_states[::-1], stream("shard", 1, 2))
    assert place == Place(1, dealt=(Dealt(3, (8, 8, 4)),))


def test_one_state_stands_for_all_where_counts_are_equal() -> None:
    place = read_states(states([8, 8])[0], stream("shard", 2, 3))
    assert place == Place(1, dealt=(Dealt(2, (8, 8)),))


def test_of_the_same_world_size_each_rank_takes_its_own() -> None:
    assert read_states(states([8, 12]), stream("shard", 1, 2)).samples == 12
    assert read_states(states([8, 8])[0], stream("shard", 1, 2)).samples == 8


@pytest.mark.parametrize(
    ("given_states", "says"),
    [
        ([], "no state was given"),
        (states([8, 8, 8])[:2], r"ranks \[2\] of 3 are missing"),
        ([states([8, 8])[0], states([8, 8], epoch=2)[1]], r"not of one epoch .*\{0: 1, 1: 2\}"),
        ([states([8, 8])[0], states([8, 8, 8])[1]], r"different world sizes: \[2, 3\]"),
    ],
)
def test_states_that_do_not_make_a_whole_are_refused(given_states: Any, says: str) -> None:
    with pytest.raises(StateMismatch, match=says):
        read_states(given_states, stream("shard", 0, 4))


def test_of_a_queue_what_any_trainer_was_given_counts() -> None:
    queue = stream("queue")
    one = write_state(Place(2, done=(0, 3)), queue)
    two = write_state(Place(2, done=(5, 7)), queue)
    old = write_state(Place(1, done=(8, 9)), queue)
    place = read_states([one, old, two], queue)
    assert (place.epoch, place.done) == (2, (0, 3, 5, 7))
