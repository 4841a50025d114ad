"""Orders are torch's own, for any length, seed, epoch and world size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.making import stream_plan
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from loaderd_server.batching.order import draw, occurrences
from loaderd_server.core.orders import Cutting, Order, RankOrder
from loaderd_server.core.settings import Mode
from loaderd_server.core.tasks import OrderDone, OrderTask
from loaderd_server.workers.plan import SamplerPlan


def order(
    length: int, kind: str, *, seed: int = 0, epoch: int = 0,
    args: dict[str, Any] | None = None, target: str | None = None, **stream: Any,
) -> OrderDone:  # fmt: skip
    plan = stream_plan(seed=seed, sampler=SamplerPlan(kind, args or {}, target), **stream)
    return draw(OrderTask(1, "d", "train", seed, epoch), plan, range(length))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 50))
def test_random_is_random_samplers(length: int, seed: int, epoch: int) -> None:
    wanted = list(RandomSampler(range(length), generator=generator(seed + epoch)))
    assert order(length, "random", seed=seed, epoch=epoch).indices.tolist() == wanted


@settings(deadline=None)
@given(
    st.integers(1, 60), st.integers(0, 9), st.integers(0, 5), st.integers(1, 17), st.booleans(),
    st.booleans(),
)  # fmt: skip
def test_shard_is_distributed_samplers(
    length: int, seed: int, epoch: int, world_size: int, drop_last: bool, shuffle: bool
) -> None:
    kind = "random" if shuffle else "sequential"
    done = order(length, kind, seed=seed, epoch=epoch, drop_last=drop_last, mode=Mode.SHARD)
    whole = Order(done.indices, done.occurrences, done.cuts)
    for rank in range(world_size):
        dealt = RankOrder(whole, Cutting(4, drop_last), rank, world_size).indices.tolist()
        if drop_last and length < world_size:
            assert dealt == []  # torch's own sampler fails here
            continue
        sampler: DistributedSampler[int] = DistributedSampler(
            range(length), world_size, rank, shuffle, seed, drop_last  # type: ignore[arg-type]
        )  # fmt: skip
        sampler.set_epoch(epoch)
        assert dealt == list(sampler)


@pytest.mark.parametrize("replacement", [True, False])
def test_weighted_is_weighted_random_samplers(replacement: bool) -> None:
    weights = [0.1, 0.9, 0.4, 0.7]
    args = {"weights": weights, "num_samples": 3, "replacement": replacement}
    wanted = list(WeightedRandomSampler(weights, 3, replacement, generator(7)))
    assert order(4, "weighted", seed=5, epoch=2, args=args).indices.tolist() == wanted


def test_weights_may_come_from_a_target() -> None:
    args = {"weights": f"{__name__}:weights_of"}
    assert set(order(4, "weighted", args=args).indices.tolist()) == {2}


def weights_of(dataset: Any) -> list[float]:
    return [1.0 if index == 2 else 0.0 for index in range(len(dataset))]


def test_weights_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 weights for 4 samples"):
        order(4, "weighted", args={"weights": [1, 1, 1]})


def test_subset_is_subset_random_samplers_or_as_given() -> None:
    indices = [9, 3, 7, 1]
    wanted = list(SubsetRandomSampler(indices, generator(4)))
    assert order(10, "subset", seed=4, args={"indices": indices}).indices.tolist() == wanted
    args = {"indices": indices, "shuffle": False}
    assert order(10, "subset", args=args).indices.tolist() == indices


def countdown(dataset: Any, *, seed: int, epoch: int, step: int = 1) -> Any:
    yield from range(len(dataset) - 1 - epoch, -1, -step)


def pairs(dataset: Any, *, seed: int, epoch: int) -> Any:
    return [[0], [1, 2], torch.tensor([3, 4, 5])]


def words(dataset: Any, *, seed: int, epoch: int) -> Any:
    return ["one", "two"]


def hole(dataset: Any, *, seed: int, epoch: int) -> Any:
    return [[0], []]


def test_a_users_sampler_gets_dataset_seed_epoch_and_args() -> None:
    done = order(6, "target", epoch=1, target=f"{__name__}:countdown", args={"step": 2})
    assert done.indices.tolist() == [4, 2, 0]


def test_a_batch_sampler_cuts_the_order() -> None:
    done = order(6, "batch_target", target=f"{__name__}:pairs")
    assert done.indices.tolist() == [0, 1, 2, 3, 4, 5]
    assert done.cuts is not None
    assert done.cuts.tolist() == [0, 1, 3, 6]


@pytest.mark.parametrize(
    ("kind", "target", "error", "says"),
    [
        ("target", "words", TypeError, "must yield whole numbers"),
        ("batch_target", "hole", ValueError, "empty batch"),
        ("target", "missing", ImportError, "has no 'missing'"),
    ],
)
def test_samplers_that_yield_wrongly_are_told_so(
    kind: str, target: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        order(3, kind, target=f"{__name__}:{target}")


def test_trainers_with_seeds_of_their_own_never_share_shifted_orders() -> None:
    epochs = {
        tuple(order(30, "random", seed=seed, epoch=epoch, mode=Mode.INDEPENDENT).indices.tolist())
        for seed in range(8)
        for epoch in range(8)
    }
    assert len(epochs) == 64
    again = order(30, "random", seed=7, epoch=7, mode=Mode.INDEPENDENT).indices.tolist()
    assert tuple(again) in epochs


@given(st.lists(st.integers(0, 8), max_size=40))
def test_occurrences_count_earlier_draws_of_the_index(drawn: list[int]) -> None:
    wanted = [drawn[:place].count(index) for place, index in enumerate(drawn)]
    counted = occurrences(np.array(drawn, dtype=np.int64))
    assert (counted is None) == (not any(wanted))
    assert counted is None or counted.tolist() == wanted


def test_an_empty_order_stays_empty() -> None:
    assert len(order(0, "random").indices) == 0
