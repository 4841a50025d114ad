"""The reference: an epoch made in one process, without daemon, slots or client.

The order is drawn and the samples are loaded by the code that workers run (it holds the keys of
randomness); dealing to ranks is torch's DistributedSampler, collating is torch's default_collate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler, default_collate

from loaderd_protocol.digests import Digester, tensors_of
from loaderd_server.audit.collation import collate
from loaderd_server.audit.expected import (
    EpochReference,
    ReferenceBatch,
    ReferenceRequest,
    SequenceKey,
)
from loaderd_server.batching.fetch import BatchedFault, Fetched, Fetcher
from loaderd_server.batching.iterables import is_iterable, length_of
from loaderd_server.batching.keys import Keys
from loaderd_server.batching.maker import build_transforms, user_collate
from loaderd_server.batching.order import draw
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.core.tasks import BatchAddress, Indices, MeasureTask, OrderDone, OrderTask
from loaderd_server.workers.plan import DatasetPlan


@dataclass(frozen=True, slots=True)
class _Share:
    """What one sequence reads of an order; batch b is the positions [bounds[b], bounds[b + 1])."""

    key: SequenceKey
    epoch: int
    indices: Indices
    occurrences: Indices | None
    bounds: Indices


class NoReference(Exception):
    """There can be no reference for a stream; the text says why."""


class Reference:
    """Makes the epochs of one stream."""

    def __init__(self, plan: DatasetPlan, stream: str, dataset: Any) -> None:
        """Raises: NoReference for a dataset whose samples cannot be asked for one by one."""
        if is_iterable(dataset):
            raise NoReference(
                f"stream {stream!r} has a {type(dataset).__name__} for its dataset, which gives no "
                f"sample by its index: the auditor cannot make a reference for it. Audit streams of "
                f"datasets with __getitem__"
            )
        self._plan = next(found for found in plan.streams if found.name == stream)
        self._dataset_name = plan.name
        self._dataset = dataset
        self._keys = Keys(plan.name)
        transforms = build_transforms(self._plan)
        self._fetcher = Fetcher(dataset, transforms, self._keys, "the auditor", lambda _row: None)
        self._makes_whole = hasattr(dataset, "batch_load")
        self._collate = user_collate(self._plan, dataset)
        self._digester = Digester(tensors_of(torch))
        self._policy = self._plan.on_error

    @property
    def digests_whole(self) -> bool:
        """Whether batches are digested as wholes: user code makes them, and rows are its own affair."""
        return self._makes_whole or self._collate is not None

    def epoch(self, request: ReferenceRequest) -> EpochReference:
        """An epoch of a sequence. Raises what a user's sampler raises."""
        key = request.sequence
        task = OrderTask(0, self._dataset_name, self._plan.name, key.seed, request.epoch)
        self._keys.seed_order(task)
        order = draw(task, self._plan, self._dataset)
        share = self._share(order, key, request.epoch)
        failed = set(request.failed)
        left_out: list[str] = []
        numbers = range(len(share.bounds) - 1)
        batches = [self._batch(share, number, failed, left_out) for number in numbers]
        _values, counts = np.unique(order.indices, return_counts=True)
        length = length_of(self._dataset)
        samples = -1 if length is None else length
        most = int(counts.max()) if len(counts) else 0
        return EpochReference(
            samples, len(order.indices), len(counts), most, tuple(batches), tuple(left_out)
        )

    def _share(self, order: OrderDone, key: SequenceKey, epoch: int) -> _Share:
        drop_last = self._plan.drop_last
        if order.cuts is None:
            rows = np.asarray(_dealt(len(order.indices), key, drop_last), dtype=np.int64)
            assert self._plan.batch_size is not None
            bounds = np.append(np.arange(0, len(rows), self._plan.batch_size), len(rows))
        else:
            dealt = _dealt(len(order.cuts) - 1, key, drop_last)
            pieces = [np.arange(order.cuts[batch], order.cuts[batch + 1]) for batch in dealt]
            rows = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
            bounds = np.cumsum([0, *(len(piece) for piece in pieces)])
        occurrences = None if order.occurrences is None else order.occurrences[rows]
        return _Share(key, epoch, order.indices[rows], occurrences, bounds)

    def _batch(
        self, share: _Share, number: int, failed: set[int], left_out: list[str]
    ) -> ReferenceBatch:
        first, stop = int(share.bounds[number]), int(share.bounds[number + 1])
        positions = self._positions(first, stop, failed, len(share.indices))
        substitutes = self._policy is ErrorPolicy.SUBSTITUTE and positions
        indices = _whole_numbers(share.indices[positions if substitutes else range(first, stop)])
        if not positions:
            return ReferenceBatch(first, indices, ())
        try:
            found, batch = self._fetch(self._task(share, number, positions))
            if not found.failures:
                return ReferenceBatch(first, indices, self._digests(first, stop, positions, batch))
        except BatchedFault as fault:
            return ReferenceBatch(first, indices, (), _told(fault.error))
        except BaseException as error:  # noqa: BLE001 - a user's collate
            return ReferenceBatch(first, indices, (), _told(error))
        words = [f"index {f.failure.index}: {f.failure.text}" for f in found.failures]
        if self._policy is ErrorPolicy.RAISE:
            return ReferenceBatch(first, indices, (), words[0])
        left_out += words
        failed.update(positions[failure.row] for failure in found.failures)
        return self._batch(share, number, failed, left_out)

    def _positions(self, first: int, stop: int, failed: set[int], length: int) -> list[int]:
        """The positions whose samples make up a batch, given those that are left out."""
        if self._policy is not ErrorPolicy.SUBSTITUTE:
            return [position for position in range(first, stop) if position not in failed]
        if len(failed) >= length:
            return []
        chosen = []
        for position in range(first, stop):
            while position in failed:
                position = (position + 1) % length
            chosen.append(position)
        return chosen

    def _task(self, share: _Share, number: int, positions: list[int]) -> MeasureTask:
        key = share.key
        address = BatchAddress(
            self._plan.name, key.seed, share.epoch, number, key.rank, key.world_size
        )
        occurrences = None if share.occurrences is None else share.occurrences[positions]
        return MeasureTask(0, self._dataset_name, address, share.indices[positions], occurrences)

    def _fetch(self, task: MeasureTask) -> tuple[Fetched, Any]:
        if self._makes_whole:
            batch, fetched = self._fetcher.whole(
                task, self._policy, self._collate or default_collate
            )
            return fetched, batch
        fetched = self._fetcher.fetch(task, self._policy)
        if fetched.failures:
            return fetched, None
        if self._collate is None:
            return fetched, collate(fetched.samples)
        self._keys.seed_batch(b"collate", task.address)
        return fetched, self._collate(fetched.samples)

    def _digests(self, first: int, stop: int, positions: list[int], batch: Any) -> tuple[str, ...]:
        if self.digests_whole:
            return (self._digester.whole(batch),)
        digests = self._digester.rows(batch)
        if self._policy is ErrorPolicy.SUBSTITUTE:
            return digests
        placed = dict(zip(positions, digests, strict=True))
        return tuple(placed.get(position, "") for position in range(first, stop))


def _dealt(units: int, key: SequenceKey, drop_last: bool) -> Sequence[int]:
    if key.world_size == 1 or units == 0:
        return range(units)
    sampler: DistributedSampler[Any] = DistributedSampler(
        range(units),  # type: ignore[arg-type]
        key.world_size,
        key.rank,
        shuffle=False,
        drop_last=drop_last,
    )
    return list(sampler)


def _whole_numbers(indices: Indices) -> tuple[int, ...]:
    return tuple(indices.tolist())


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
