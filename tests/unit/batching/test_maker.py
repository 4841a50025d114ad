"""What a worker makes of a task: values, keys, policies, exceptions; all by coordinates."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import case_datasets
from tests.support.making import Bench, stream_plan
from torch.utils.data import Dataset, Subset, default_collate

from loaderd_server.batching.fetch import NO_ROW, loads_at_once
from loaderd_server.batching.keys import Keys
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTooLarge,
    MeasureDone,
    MeasureTask,
    ProbeDone,
    ProbeTask,
    TaskFailed,
)
from loaderd_server.workers.plan import SamplerPlan, Target

HERE = __name__


def noisy(sample: Any, rng: np.random.Generator) -> list[float]:
    return [float(sample), rng.random(), random.random(), np.random.rand(), torch.rand(()).item()]


class Given:
    """A transform that draws only from its generator."""

    uses_only_given_rng = True

    def __call__(self, sample: Any, rng: np.random.Generator) -> list[float]:
        return [float(sample), rng.random(), rng.normal()]


def global_collate(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])


def global_sampler(dataset: Any, *, seed: int, epoch: int) -> list[int]:
    return [random.randrange(1 << 30), np.random.randint(1 << 30), int(torch.randint(1 << 30, ()))]


NOISY = (Target(f"{HERE}:noisy"),)
GIVEN = (Target(f"{HERE}:Given"),)


def rows_of(batch: Any) -> list[tuple[float, ...]]:
    return list(zip(*[column.tolist() for column in batch], strict=True))


@pytest.mark.parametrize("transforms", [NOISY, GIVEN])
def test_rows_are_the_same_whole_in_halves_and_in_any_order(transforms: Any) -> None:
    bench = Bench(case_datasets.Indices(8), transforms=transforms)
    whole = rows_of(bench.batch(range(8)))
    other = Bench(case_datasets.Indices(8), transforms=transforms)
    halves = rows_of(other.batch([4, 5, 6, 7], batch=1)) + rows_of(other.batch([0, 1, 2, 3]))
    assert sorted(halves) == sorted(whole)
    assert len({row[1] for row in whole}) == 8
    assert rows_of(bench.batch(range(8), epoch=1)) != whole


def test_an_index_drawn_twice_has_two_keys() -> None:
    bench = Bench(case_datasets.Indices(4), transforms=GIVEN)
    first, second, third = rows_of(bench.batch([2, 2, 2], occurrences=[0, 1, 2]))
    assert len({first[1], second[1], third[1]}) == 3
    assert rows_of(bench.batch([2], occurrences=[1]))[0] == second


def test_a_generator_keeps_nothing_of_the_sample_before() -> None:
    keys, address = Keys("d"), BatchAddress("train", 0, 0, 0, 0, 1)
    fresh = Keys("d").rng(address, 5, 0).integers(0, 2**32, size=9, dtype=np.uint32).tolist()
    for draws in range(8):
        keys.rng(address, 4, 0).integers(0, 2**32, size=draws, dtype=np.uint32)
        again = keys.rng(address, 5, 0).integers(0, 2**32, size=9, dtype=np.uint32)
        assert again.tolist() == fresh


def test_datasets_and_large_seeds_have_keys_of_their_own() -> None:
    seen = {
        Keys(name).rng(BatchAddress("s", seed, 0, 0, 0, 1), 0, 0).random()
        for name in ("a", "b")
        for seed in (0, 1, 2**63, 2**64 - 1)
    }
    assert len(seen) == 8


def test_a_users_collate_draws_under_the_batchs_key() -> None:
    collate = Target(f"{HERE}:global_collate")
    drawn = [
        Bench(case_datasets.Indices(), collate=collate).batch([0], epoch=e, batch=b).tolist()
        for e, b in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert drawn[0] == drawn[1]
    assert len({tuple(row) for row in drawn}) == 3


class Batched:
    """Makes whole batches; draws one number for each."""

    def __len__(self) -> int:
        return 10

    def batch_load(self, indices: Sequence[int], collate: Callable[[Any], Any]) -> Any:
        if 7 in indices:
            raise ValueError("seven")
        return collate([(index, 0.5) for index in indices]), random.random()


class ItemsAtOnce:
    """Gives the samples of a batch in one call."""

    def __init__(self, short: bool = False) -> None:
        self.short = short
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return 10

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls.append(indices)
        if 7 in indices:
            raise KeyError("seven")
        return indices[1:] if self.short else indices

    def _get_collate_fn(self) -> Callable[[Any], Any]:
        return lambda samples: {"sum": torch.tensor(sum(samples)), "all": list(samples)}


def test_batch_load_makes_the_whole_batch_under_one_key() -> None:
    (indices, halves), drawn = Bench(Batched()).batch([1, 2, 3])
    assert indices.tolist() == [1, 2, 3]
    assert halves.dtype == torch.float64
    assert Bench(Batched()).batch([1, 2, 3])[1] == drawn
    assert Bench(Batched()).batch([1, 2, 3], batch=1)[1] != drawn


def test_getitems_is_called_once_and_the_datasets_collate_is_used() -> None:
    dataset = ItemsAtOnce()
    assert Bench(dataset).batch([4, 5]) == {"sum": torch.tensor(9), "all": [4, 5]}
    assert dataset.calls == [[4, 5]]


def test_getitems_of_a_wrong_length_fails_the_batch() -> None:
    result = Bench(ItemsAtOnce(short=True)).do([1, 2])
    assert isinstance(result, TaskFailed)
    assert "returned 1 samples for 2 indices" in result.failures[0].failure.text


@pytest.mark.parametrize("dataset", [Batched, ItemsAtOnce])
def test_a_batched_loader_that_fails_fails_whole_or_row_by_row(dataset: Any) -> None:
    raised = Bench(dataset()).do([6, 7, 8])
    assert isinstance(raised, TaskFailed)
    assert [failure.row for failure in raised.failures] == [-1]
    skipped = Bench(dataset(), on_error=ErrorPolicy.SKIP).do([6, 7, 8])
    assert isinstance(skipped, BatchDone)
    assert skipped.rows == 2
    assert [(f.row, f.failure.index) for f in skipped.skipped] == [(1, 7)]
    named = Bench(dataset(), on_error=ErrorPolicy.SUBSTITUTE).do([6, 7, 8])
    assert isinstance(named, TaskFailed)
    assert [failure.row for failure in named.failures] == [1]


def test_transforms_with_batch_load_are_refused() -> None:
    result = Bench(Batched(), transforms=NOISY).do([1])
    assert isinstance(result, TaskFailed)
    assert "makes whole batches" in result.failures[0].failure.text


@pytest.mark.parametrize("fault", sorted(case_datasets.FAULTS))
def test_any_exception_is_a_failure_with_class_text_traceback_and_index(fault: str) -> None:
    result = Bench(case_datasets.Raising(fault)).do([2, 3, 4])
    assert isinstance(result, TaskFailed)
    (failed,) = result.failures
    raised = case_datasets.FAULTS[fault]()
    assert (failed.row, failed.failure.index) == (1, 3)
    assert failed.failure.class_name.endswith(type(raised).__qualname__)
    assert failed.failure.text == str(raised)
    assert "__getitem__" in failed.failure.traceback
    assert failed.failure.where == "worker 0, pid 1"


class Rude(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def rude(sample: Any, rng: Any) -> Any:
    raise Rude


def test_an_exception_that_cannot_be_shown_is_a_failure_still() -> None:
    result = Bench(case_datasets.Indices(), transforms=(Target(f"{HERE}:rude"),)).do([0])
    assert isinstance(result, TaskFailed)
    assert "__str__ raised RuntimeError" in result.failures[0].failure.text


def test_policies_stop_at_the_first_leave_out_or_name_all() -> None:
    class Odd:
        def __getitem__(self, index: int) -> int:
            if index % 2:
                raise ValueError(index)
            return index

    first = Bench(Odd()).do([0, 1, 2, 3])
    assert isinstance(first, TaskFailed)
    assert [f.row for f in first.failures] == [1]
    every = Bench(Odd(), on_error=ErrorPolicy.SUBSTITUTE).do([0, 1, 2, 3])
    assert isinstance(every, TaskFailed)
    assert [f.row for f in every.failures] == [1, 3]
    skipping = Bench(Odd(), on_error=ErrorPolicy.SKIP)
    assert skipping.batch([0, 1, 2, 3]).tolist() == [0, 2]
    empty = skipping.do([1, 3])
    assert isinstance(empty, BatchDone)
    assert empty.rows == 0
    assert len(empty.skipped) == 2


def test_a_batch_that_does_not_fit_says_how_much_it_needs() -> None:
    result = Bench(case_datasets.Large(), slot_bytes=4096).do([1, 2])
    assert isinstance(result, BatchTooLarge)
    assert result.needed_bytes == 8000
    fitting = Bench(case_datasets.Large(), slot_bytes=result.needed_bytes)
    assert fitting.batch([1, 2]).shape == (2, 1000)


def test_measuring_writes_nothing_and_passes_over_bad_samples() -> None:
    bench = Bench(case_datasets.Raising("value"))
    measured = bench.do([2, 3, 4], kind=MeasureTask)
    assert isinstance(measured, MeasureDone)
    assert measured.size_bytes == 64  # two int64, aligned
    assert (bench.slot == 0xAB).all()
    assert bench.do([3], kind=MeasureTask) == MeasureDone(1, 0)


def test_a_probe_loads_and_throws_away() -> None:
    bench = Bench(case_datasets.Raising("base"))
    assert bench.do([2, 3, 4], kind=ProbeTask) == ProbeDone(1)
    assert bench.rows == [0, 1, 2]
    assert Bench(Batched()).do([7], kind=ProbeTask) == ProbeDone(1)


def test_a_death_in_the_collate_is_laid_to_no_row() -> None:
    bench = Bench(case_datasets.Indices())
    bench.batch([1, 2])
    assert bench.rows == [0, 1, NO_ROW]


def test_a_sampler_that_draws_from_the_global_generators_depends_on_seed_and_epoch_alone() -> None:
    stream: dict[str, Any] = {"sampler": SamplerPlan("target", {}, f"{HERE}:global_sampler")}
    first, second = (Bench(case_datasets.Indices(), **stream) for _ in range(2))
    orders = [first.order(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(order) for order in orders}) == 3
    assert [second.order(1, 0), second.order(0, 1), second.order(0, 0)] == orders[::-1]


def test_getitems_may_be_switched_off_as_in_torch() -> None:
    class Switched(case_datasets.Indices):
        __getitems__ = None

    assert Bench(Switched()).batch([1, 2]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"transforms": (Target("no_such:x"),)}, "no module 'no_such'"),
        ({"transforms": (Target("resise", {"size": 3}),)}, "did you mean 'resize'"),
        ({"collate": Target(f"{HERE}:nothing")}, "has no 'nothing'"),
    ],
)
def test_what_cannot_be_imported_fails_the_batch_by_name(changes: Any, says: str) -> None:
    result = Bench(case_datasets.Indices(), **changes).do([0])
    assert isinstance(result, TaskFailed)
    assert says in result.failures[0].failure.text


def test_the_default_collate_by_name_is_written_straight_into_the_slot() -> None:
    class Default(case_datasets.Indices):
        def _get_collate_fn(self) -> Any:
            return default_collate

    assert Bench(Default()).batch([1, 2]).tolist() == [1, 2]


def test_a_subset_of_a_dataset_without_getitems_is_loaded_sample_by_sample() -> None:
    plain, batched = Subset(_OneByOne(), [2, 0]), Subset(_AtOnce(), [2, 0])
    assert not loads_at_once(plain)
    assert not loads_at_once(Subset(plain, [1]))
    assert loads_at_once(batched)


class _OneByOne(Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class _AtOnce(_OneByOne):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def test_a_new_plan_is_followed_and_what_did_not_change_is_not_built_again() -> None:
    bench = Bench(case_datasets.Indices(8), transforms=GIVEN)
    assert [len(row) for row in rows_of(bench.batch([0, 1]))] == [3, 3]
    built = bench.maker._streams["train"]
    same = stream_plan(transforms=GIVEN)
    bench.maker.change_plan(replace(bench.maker.plan, streams=(same, stream_plan(name="more"))))
    assert bench.maker._streams["train"] is built
    bench.maker.change_plan(replace(bench.maker.plan, streams=(stream_plan(transforms=NOISY),)))
    assert [len(row) for row in rows_of(bench.batch([0, 1]))] == [5, 5]
