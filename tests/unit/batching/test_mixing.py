"""Orders of mixtures: by weights, by policy, the same for the same seed and epoch, and fast."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.making import Bench
from tests.support.mixtures import plain_order

from loaderd_server.batching.mixing import Exhausted, MixingRules, mixed
from loaderd_server.datasets.mixture import Source, mix
from loaderd_server.workers.plan import SamplerPlan

#: Standard deviations that a count may be off: with fixed seeds this never changes its mind.
SIGMAS = 4


def rules(
    *weights: float, exhausted: str = "stop", samples: int | None = None, walk: str = "random"
) -> MixingRules:
    return MixingRules(weights, (walk,) * len(weights), Exhausted(exhausted), samples)


def drawn(order: Any, lengths: list[int]) -> list[tuple[int, int]]:
    """Each position's source and index in it."""
    ends = np.cumsum(lengths)
    sources = np.searchsorted(ends, order, side="right")
    starts = ends - np.asarray(lengths)
    return list(zip(sources.tolist(), (order - starts[sources]).tolist(), strict=True))


MIXTURES = st.lists(
    st.tuples(
        st.integers(1, 12), st.floats(0.05, 20), st.sampled_from(["random", "sequential"])
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@settings(deadline=None)
@given(
    MIXTURES, st.sampled_from(list(Exhausted)), st.none() | st.integers(1, 300),
    st.integers(0, 2**63), st.integers(0, 40),
)  # fmt: skip
def test_an_order_is_what_drawing_one_by_one_by_the_policys_words_gives(
    sources: list[tuple[int, float, str]], exhausted: Exhausted, samples: int | None, seed: int,
    epoch: int,
) -> None:  # fmt: skip
    lengths, weights, samplers = map(list, zip(*sources, strict=True))
    samples = samples if exhausted is Exhausted.REPEAT else None
    chosen = MixingRules(tuple(weights), tuple(samplers), exhausted, samples)
    order = mixed(seed, epoch, lengths, chosen)
    assert order.dtype == np.int64
    assert drawn(order, lengths) == plain_order(seed, epoch, lengths, chosen)


@settings(deadline=None)
@given(MIXTURES, st.integers(0, 2**63), st.integers(0, 40))
def test_drop_gives_every_sample_once(
    sources: list[tuple[int, float, str]], seed: int, epoch: int
) -> None:
    lengths, weights, samplers = map(list, zip(*sources, strict=True))
    order = mixed(
        seed, epoch, lengths, MixingRules(tuple(weights), tuple(samplers), Exhausted.DROP)
    )
    assert sorted(order.tolist()) == list(range(sum(lengths)))


@settings(deadline=None)
@given(MIXTURES, st.integers(0, 2**63))
def test_stop_gives_no_sample_twice_and_all_of_one_source(
    sources: list[tuple[int, float, str]], seed: int
) -> None:
    lengths, weights, samplers = map(list, zip(*sources, strict=True))
    order = mixed(seed, 0, lengths, MixingRules(tuple(weights), tuple(samplers), Exhausted.STOP))
    assert len(set(order.tolist())) == len(order)
    used = np.bincount([source for source, _ in drawn(order, lengths)], minlength=len(lengths))
    assert (used == lengths).any()


@settings(deadline=None)
@given(MIXTURES, st.integers(0, 2**63))
def test_repeat_gives_every_sample_and_ends_with_the_last_source_to_be_used_up(
    sources: list[tuple[int, float, str]], seed: int
) -> None:
    lengths, weights, samplers = map(list, zip(*sources, strict=True))
    order = mixed(seed, 0, lengths, MixingRules(tuple(weights), tuple(samplers), Exhausted.REPEAT))
    assert set(order.tolist()) == set(range(sum(lengths)))
    assert len(set(order[:-1].tolist())) == sum(lengths) - 1


def test_repeat_shuffles_each_pass_anew_and_finishes_one_before_the_next() -> None:
    lengths = [40, 1000]
    order = mixed(1, 0, lengths, rules(1, 1, exhausted="repeat"))
    of_first = [index for source, index in drawn(order, lengths) if source == 0]
    passes = [of_first[start : start + 40] for start in range(0, len(of_first) - 39, 40)]
    assert len(passes) > 15
    assert all(sorted(one) == list(range(40)) for one in passes)
    assert len({tuple(one) for one in passes}) == len(passes)


def test_sequential_sources_are_walked_in_order() -> None:
    lengths = [30, 50]
    order = mixed(3, 0, lengths, rules(1, 2, exhausted="drop", walk="sequential"))
    for source, length in enumerate(lengths):
        assert [i for s, i in drawn(order, lengths) if s == source] == list(range(length))


def test_sources_come_by_their_weights_whatever_their_lengths() -> None:
    weights, samples = (0.7, 0.2, 0.1), 200_000
    lengths = [50, 400_000, 3_000]
    order = mixed(11, 0, lengths, rules(*weights, exhausted="repeat", samples=samples))
    assert len(order) == samples
    counts = np.bincount([source for source, _ in drawn(order, lengths)])
    for count, weight in zip(counts, weights, strict=True):
        sigma = (samples * weight * (1 - weight)) ** 0.5
        assert abs(count - samples * weight) < SIGMAS * sigma


def test_what_comes_next_does_not_depend_on_what_came_before() -> None:
    weights, samples = np.array([0.6, 0.3, 0.1]), 200_000
    lengths = [500, 500, 500]
    order = mixed(5, 2, lengths, rules(*weights, exhausted="repeat", samples=samples))
    sources = np.array([source for source, _ in drawn(order, lengths)])
    pairs = np.bincount(sources[:-1] * 3 + sources[1:], minlength=9)
    for chance, count in zip(np.outer(weights, weights).ravel(), pairs, strict=True):
        assert abs(count - samples * chance) < SIGMAS * 1.5 * (samples * chance) ** 0.5


def test_weights_are_renormalised_when_a_source_has_left() -> None:
    lengths = [1_000, 200_000, 200_000]
    order = mixed(7, 0, lengths, rules(8, 3, 1, exhausted="drop"))
    sources = np.array([source for source, _ in drawn(order, lengths)])
    left = int(np.flatnonzero(sources == 0)[-1]) + 1
    assert left < 2_000
    after = sources[left : left + 100_000]
    assert abs((after == 1).sum() - 75_000) < SIGMAS * (100_000 * 0.75 * 0.25) ** 0.5


@pytest.mark.parametrize("exhausted", ["stop", "repeat", "drop"])
def test_orders_are_a_function_of_seed_and_epoch(exhausted: str) -> None:
    chosen = rules(2, 1, exhausted=exhausted)
    orders = {
        (seed, epoch): tuple(mixed(seed, epoch, [60, 50], chosen).tolist())
        for seed in (0, 1) for epoch in (0, 1)
    }  # fmt: skip
    assert len(set(orders.values())) == 4  # (0, 1) and (1, 0) are no neighbours either
    assert all(
        tuple(mixed(*place, [60, 50], chosen).tolist()) == order for place, order in orders.items()
    )


def test_orders_stay_what_they_are_so_that_states_stay_good() -> None:
    order = mixed(1, 2, [6, 4], rules(2, 1, exhausted="drop"))
    assert order.tolist() == [4, 1, 7, 3, 0, 9, 6, 5, 2, 8]


def test_weights_of_any_size_give_finite_orders() -> None:
    order = mixed(0, 0, [5, 5], rules(1e300, 5e-324, exhausted="drop"))
    assert sorted(order.tolist()) == list(range(10))
    assert sorted(order[:5].tolist()) == list(range(5))


def test_an_epoch_that_would_hardly_end_is_refused_with_its_reason() -> None:
    with pytest.raises(ValueError, match=r"about 1e\+12 samples .*source 2 .* has 1000000 and 1e-06"
                       r" of the weight.*Set `samples`"):  # fmt: skip
        mixed(0, 0, [10, 1_000_000], rules(1, 1e-6, exhausted="repeat"))
    assert len(mixed(0, 0, [10, 1_000_000], rules(1, 1e-6, exhausted="repeat", samples=99))) == 99


def test_a_workers_order_of_a_mixture_is_the_mixed_one_with_occurrences() -> None:
    args = {"weights": [3, 1], "samplers": ["random"] * 2, "exhausted": "repeat", "samples": None}
    dataset = mix([Source("a", range(4)), Source("b", range(6))])
    bench = Bench(dataset, sampler=SamplerPlan("mixture", args))
    order = bench.order(9, 2)
    assert order == mixed(9, 2, [4, 6], rules(3, 1, exhausted="repeat")).tolist()
    assert len(order) > 10


@pytest.mark.parametrize("exhausted", ["stop", "repeat", "drop"])
def test_a_million_positions_take_well_under_a_second(exhausted: str) -> None:
    lengths = [700_000, 250_000, 49_000, 1_000]
    began = time.process_time()
    order = mixed(3, 0, lengths, rules(70, 25, 4.9, 0.1, exhausted=exhausted))
    assert time.process_time() - began < 1.0
    assert 800_000 < len(order) < 1_300_000
