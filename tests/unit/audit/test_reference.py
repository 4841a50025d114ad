"""The reference by itself: orders, ranks, failures, and what it cannot be made for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support import audit_datasets, streams
from tests.support.making import stream_plan
from torch.utils.data import DistributedSampler

from loaderd_server.audit.expected import EpochReference, ReferenceRequest, SequenceKey
from loaderd_server.audit.reference import NoReference, Reference
from loaderd_server.core.settings import ErrorPolicy, Mode
from loaderd_server.workers.plan import DatasetPlan, ProcessPlan, SamplerPlan, Target

HERE = "tests.support.audit_datasets"


def reference(dataset: Any, **stream: Any) -> Reference:
    plan = DatasetPlan("d", Target("m:d"), (), (stream_plan(**stream),), ProcessPlan())
    return Reference(plan, "train", dataset)


def epoch(dataset: Any, *, failed: tuple[int, ...] = (), number: int = 0, **stream: Any) -> Any:
    return reference(dataset, **stream).epoch(ReferenceRequest(SequenceKey(0), number, failed))


def digests(made: EpochReference) -> list[str]:
    return [digest for batch in made.batches for digest in batch.digests]


def indices(made: EpochReference) -> list[int]:
    return [index for batch in made.batches for index in batch.indices]


def test_it_is_equal_each_time_and_other_in_the_next_epoch() -> None:
    dataset = audit_datasets.Arrays()
    first = epoch(dataset)
    assert first == epoch(dataset)
    assert first != epoch(dataset, number=1)
    assert len(set(digests(first))) == 26


def test_it_says_that_each_index_is_drawn_once() -> None:
    made = epoch(audit_datasets.Arrays(10), sampler=SamplerPlan("random"))
    assert made.is_each_once
    assert sorted(indices(made)) == list(range(10))


def test_it_counts_what_a_sampler_draws() -> None:
    sampler = SamplerPlan("target", {}, f"{HERE}:every_other")
    made = epoch(audit_datasets.Arrays(10), sampler=sampler)
    assert (made.samples, made.drawn, made.distinct, made.most_often) == (10, 8, 5, 3)
    assert not made.is_each_once


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [0, 2, 10, 12])
def test_ranks_are_dealt_as_torch_deals_them(length: int, drop_last: bool) -> None:
    made = reference(audit_datasets.Arrays(length), mode=Mode.SHARD, drop_last=drop_last)
    for rank in range(3):
        found = indices(made.epoch(ReferenceRequest(SequenceKey(0, rank, 3), 0)))
        if length:
            sampler: DistributedSampler[int] = DistributedSampler(
                range(length),  # type: ignore[arg-type]
                3,
                rank,
                shuffle=False,
                drop_last=drop_last,
            )
            assert found == list(sampler)
        else:
            assert found == []


def test_skipped_positions_leave_holes() -> None:
    made = epoch(audit_datasets.OddOnesFail(10), failed=(3, 8), on_error=ErrorPolicy.SKIP)
    assert [position for position, digest in enumerate(digests(made)) if not digest] == [3, 8]
    assert made.left_out == ()


def test_substituted_positions_hold_the_next_good_sample() -> None:
    made = epoch(audit_datasets.OddOnesFail(10), failed=(3, 8), on_error=ErrorPolicy.SUBSTITUTE)
    assert indices(made) == [0, 1, 2, 4, 4, 5, 6, 7, 9, 9]
    assert digests(made)[3] == digests(made)[4]


@pytest.mark.parametrize("policy", [ErrorPolicy.SKIP, ErrorPolicy.SUBSTITUTE])
def test_failures_that_the_loader_did_not_report_are_told(policy: ErrorPolicy) -> None:
    made = epoch(audit_datasets.OddOnesFail(10), on_error=policy)
    assert made.left_out == (
        "index 3: sample 3 is broken",
        "index 8: sample 8 is broken",
    )


def test_a_failing_sample_fails_its_batch_where_the_policy_is_raise() -> None:
    made = epoch(audit_datasets.OddOnesFail(10))
    assert [batch.failure for batch in made.batches] == [
        "index 3: sample 3 is broken",
        "",
        "index 8: sample 8 is broken",
    ]


def test_batches_of_a_users_collate_are_digested_whole() -> None:
    made = reference(audit_datasets.Arrays(10), collate=Target(f"{HERE}:ragged"))
    assert made.digests_whole
    batches = made.epoch(ReferenceRequest(SequenceKey(0), 0)).batches
    assert [len(batch.digests) for batch in batches] == [1, 1, 1]
    assert not reference(audit_datasets.Arrays(10)).digests_whole


def test_a_dataset_without_indices_has_no_reference() -> None:
    with pytest.raises(
        NoReference, match=r"stream 'train' has a Sharded .* no sample by its index"
    ):
        reference(streams.Sharded())


def test_orders_are_of_whole_numbers() -> None:
    made = epoch(audit_datasets.Arrays(5))
    assert all(type(index) is int for index in indices(made))
    assert not isinstance(made.most_often, np.integer)
