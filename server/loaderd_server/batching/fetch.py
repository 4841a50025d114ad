"""Samples of a task: loaded, transformed, each under its own keys; and what failed of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Subset

from loaderd_server.batching.faults import failure_of
from loaderd_server.batching.keys import Keys
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.core.tasks import BatchAddress, BatchTask, MeasureTask, ProbeTask, RowFailure

#: Called with a row before it is begun, so that a death can be laid to it; NO_ROW when none is.
Progress = Callable[[int], None]
NO_ROW = -1
Transform = Callable[[Any, Any], Any]
SampleTask = BatchTask | MeasureTask | ProbeTask


class BatchedFault(Exception):
    """A batched loader failed and no single row could be found that does."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class Fetched:
    """The good samples of a task, in order, and the rows that failed."""

    samples: list[Any] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    failures: list[RowFailure] = field(default_factory=list)
    load_s: float = 0.0
    transform_s: float = 0.0


def loads_at_once(dataset: Any) -> bool:
    """Whether a dataset loads a batch's samples in one call. As torch asks: it may say None for that.

    A torch Subset offers the call for any dataset, and only loops where that one has none.
    """
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


class Fetcher:
    """Loads and transforms for one stream in one worker."""

    def __init__(
        self,
        dataset: Any,
        transforms: Sequence[Transform],
        keys: Keys,
        where: str,
        progress: Progress,
    ) -> None:
        self._dataset = dataset
        self._transforms = transforms
        self._keys = keys
        self._where = where
        self._progress = progress
        self._seeds_load = not getattr(dataset, "uses_only_given_rng", False)
        self._seeds_transform = any(
            not getattr(transform, "uses_only_given_rng", False) for transform in transforms
        )
        self.is_batched = loads_at_once(dataset)

    def fetch(self, task: SampleTask, policy: ErrorPolicy) -> Fetched:
        """The samples of a task. ``raise`` ends at the first failure, the others go through all.

        Raises: BatchedFault.
        """
        fetched = Fetched()
        indices = task.indices.tolist()
        occurrences = [0] * len(indices) if task.occurrences is None else task.occurrences.tolist()
        if self.is_batched:
            loaded = self._load_batched(task.address, indices, policy, fetched)
        else:
            loaded = None
        for row, (index, occurrence) in enumerate(zip(indices, occurrences, strict=True)):
            if loaded is not None and row not in loaded:
                continue
            self._progress(row)
            try:
                began = time.perf_counter()
                sample = (
                    self._load(task.address, index, occurrence) if loaded is None else loaded[row]
                )
                between = time.perf_counter()
                sample = self.transform(task.address, index, occurrence, sample)
                fetched.load_s += between - began
                fetched.transform_s += time.perf_counter() - between
            except BaseException as error:  # noqa: BLE001 - user code; SystemExit must not end us
                fetched.failures.append(RowFailure(row, failure_of(error, index, self._where)))
                if policy is ErrorPolicy.RAISE:
                    return fetched
                continue
            fetched.samples.append(sample)
            fetched.rows.append(row)
        return fetched

    def whole(
        self, task: SampleTask, policy: ErrorPolicy, collate: Callable[[Any], Any]
    ) -> tuple[Any, Fetched]:
        """The batch that ``dataset.batch_load(indices, collate)`` makes, and which rows are in it.

        Raises: BatchedFault.
        """
        fetched = Fetched()
        indices = task.indices.tolist()

        def load(rows: list[int]) -> Any:
            self._keys.seed_batch(b"load", task.address)
            return self._dataset.batch_load([indices[row] for row in rows], collate)

        began = time.perf_counter()
        rows, batch = self._try_rows(load, indices, policy, fetched)
        fetched.rows = rows
        fetched.load_s = time.perf_counter() - began
        return batch, fetched

    def transform(self, address: BatchAddress, index: int, occurrence: int, sample: Any) -> Any:
        """A loaded sample after all transforms, under its own keys."""
        if not self._transforms:
            return sample
        if self._seeds_transform:
            self._keys.seed_sample(b"transform", address, index, occurrence)
        rng = self._keys.rng(address, index, occurrence)
        for transform in self._transforms:
            sample = transform(sample, rng)
        return sample

    def _load(self, address: BatchAddress, index: int, occurrence: int) -> Any:
        if self._seeds_load:
            self._keys.seed_sample(b"load", address, index, occurrence)
        return self._dataset[index]

    def _load_batched(
        self, address: BatchAddress, indices: list[int], policy: ErrorPolicy, fetched: Fetched
    ) -> dict[int, Any]:
        def load(rows: list[int]) -> Any:
            self._keys.seed_batch(b"load", address)
            samples = self._dataset.__getitems__([indices[row] for row in rows])
            if len(samples) != len(rows):
                raise ValueError(
                    f"__getitems__ returned {len(samples)} samples for {len(rows)} indices"
                )
            return samples

        began = time.perf_counter()
        rows, samples = self._try_rows(load, indices, policy, fetched)
        fetched.load_s += time.perf_counter() - began
        return dict(zip(rows, samples if samples is not None else [], strict=True))

    def _try_rows(
        self,
        load: Callable[[list[int]], Any],
        indices: list[int],
        policy: ErrorPolicy,
        fetched: Fetched,
    ) -> tuple[list[int], Any]:
        """All rows at once; where that fails, and the policy asks, without those that fail alone."""
        rows = list(range(len(indices)))
        try:
            return rows, load(rows)
        except BaseException as error:
            if policy is ErrorPolicy.RAISE:
                raise BatchedFault(error) from error
            first = error
        for row in rows:
            self._progress(row)
            try:
                load([row])
            except BaseException as error:  # noqa: BLE001 - user code; SystemExit must not end us
                fetched.failures.append(
                    RowFailure(row, failure_of(error, indices[row], self._where))
                )
        failed = {failure.row for failure in fetched.failures}
        good = [row for row in rows if row not in failed]
        if not failed:
            raise BatchedFault(first) from first
        if not good:
            return [], None
        self._progress(NO_ROW)
        try:
            return good, load(good)
        except BaseException as error:
            raise BatchedFault(error) from error
