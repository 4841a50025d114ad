"""An epoch's order, drawn as torch draws it: sequential, random, weighted, subset, or the user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np
import torch

from loaderd_server.batching.imports import load
from loaderd_server.batching.mixing import MixingRules, mixed
from loaderd_server.core.settings import Mode
from loaderd_server.core.tasks import Indices, OrderDone, OrderTask
from loaderd_server.workers.plan import StreamPlan

_MASK = (1 << 64) - 1


def draw(task: OrderTask, plan: StreamPlan, dataset: Any) -> OrderDone:
    """The order of an epoch, before it is cut into ranks and batches.

    Raises: whatever a user's sampler raises; ValueError or TypeError for what it yields wrongly.
    """
    sampler = plan.sampler
    if sampler.kind == "batch_target":
        indices, cuts = _batches(_user_sampler(plan, dataset, task))
        return OrderDone(task.task, indices, occurrences(indices), cuts)
    indices = _DRAWS[sampler.kind](task, plan, dataset)
    return OrderDone(task.task, indices, occurrences(indices), None)


def generator(task: OrderTask, mode: Mode) -> torch.Generator:
    """Torch's generator for an epoch, as RandomSampler and DistributedSampler are commonly given.

    Trainers with orders of their own get a hash of seed and epoch instead: with sums, neighbouring
    seeds would read each other's epochs, shifted by one.
    """
    made = torch.Generator()
    if mode is Mode.INDEPENDENT:
        coordinates = f"{task.seed & _MASK} {task.epoch}".encode()
        made.manual_seed(int.from_bytes(hashlib.blake2b(coordinates, digest_size=8).digest()))
    else:
        made.manual_seed((task.seed + task.epoch) & _MASK)
    return made


def occurrences(indices: Indices) -> Indices | None:
    """How often each index was drawn before in this order; None where all are drawn once."""
    by_index = np.argsort(indices, kind="stable")
    ordered = indices[by_index]
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    if is_first.all():
        return None
    places = np.arange(len(ordered), dtype=np.int64)
    counted = places - np.maximum.accumulate(np.where(is_first, places, 0))
    result = np.empty(len(indices), dtype=np.int64)
    result[by_index] = counted
    return result


def _sequential(_task: OrderTask, _plan: StreamPlan, dataset: Sized) -> Indices:
    return np.arange(len(dataset), dtype=np.int64)


def _random(task: OrderTask, plan: StreamPlan, dataset: Sized) -> Indices:
    drawn: Indices = torch.randperm(len(dataset), generator=generator(task, plan.mode)).numpy()
    return drawn


def _weighted(task: OrderTask, plan: StreamPlan, dataset: Sized) -> Indices:
    """As torch.utils.data.WeightedRandomSampler under ``generator``."""
    args = plan.sampler.args
    weights: Any = args["weights"]
    if isinstance(weights, str):
        weights = load(weights)(dataset)
    weights = torch.as_tensor(weights, dtype=torch.double)
    if len(weights) != len(dataset):
        raise ValueError(
            f"the weighted sampler has {len(weights)} weights for {len(dataset)} samples"
        )
    draws = args.get("num_samples") or len(weights)
    replacement = args.get("replacement", True)
    drawn = torch.multinomial(weights, draws, replacement, generator=generator(task, plan.mode))
    result: Indices = drawn.numpy()
    return result


def _subset(task: OrderTask, plan: StreamPlan, _dataset: Sized) -> Indices:
    """As torch.utils.data.SubsetRandomSampler under ``generator``, or as given."""
    given = np.asarray(plan.sampler.args["indices"], dtype=np.int64)
    if not plan.sampler.args.get("shuffle", True):
        return given
    shuffled: Indices = given[
        torch.randperm(len(given), generator=generator(task, plan.mode)).numpy()
    ]
    return shuffled


def _target(task: OrderTask, plan: StreamPlan, dataset: Any) -> Indices:
    return _whole(list(_user_sampler(plan, dataset, task)), plan)


def _mixture(task: OrderTask, plan: StreamPlan, dataset: Any) -> Indices:
    return mixed(task.seed, task.epoch, dataset.lengths, MixingRules.of(plan.sampler.args))


def _user_sampler(plan: StreamPlan, dataset: Any, task: OrderTask) -> Any:
    assert plan.sampler.target is not None
    return load(plan.sampler.target)(dataset, seed=task.seed, epoch=task.epoch, **plan.sampler.args)


def _whole(drawn: Sequence[Any], plan: StreamPlan) -> Indices:
    try:
        array = np.asarray(drawn)
        if len(array) == 0:
            return np.empty(0, dtype=np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TypeError(f"got {array.dtype} of shape {array.shape}")
        return array.astype(np.int64)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"sampler {plan.sampler.target} must yield whole numbers, one index each: {error}"
        ) from None


def _batches(drawn: Any) -> tuple[Indices, Indices]:
    batches = [np.asarray(batch, dtype=np.int64).reshape(-1) for batch in drawn]
    lengths = np.array([0, *(len(batch) for batch in batches)], dtype=np.int64)
    if (lengths[1:] == 0).any():
        raise ValueError("the batch sampler yields an empty batch")
    indices = np.concatenate(batches) if batches else np.empty(0, dtype=np.int64)
    return indices, np.cumsum(lengths)


_DRAWS: dict[str, Callable[[OrderTask, StreamPlan, Any], Indices]] = {
    "sequential": _sequential,
    "random": _random,
    "weighted": _weighted,
    "subset": _subset,
    "target": _target,
    "mixture": _mixture,
}
