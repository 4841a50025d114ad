"""Filling a cache before trainers ask: in the order of first use, by workers that have nothing else to do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loaderd_server.core.cache import Cache
from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.jobs import AnyWorker, WorkerLoss
from loaderd_server.core.streams import Stream
from loaderd_server.core.tasks import FillDone, FillTask, Indices, Result

#: No batch is due later.
_AFTER_ALL_OTHERS = 2**62
#: What a worker loads at a time, so that a trainer that comes does not wait for long.
_PIECE_S = 0.05
_MOST_AT_ONCE = 256


class Warming:
    """Of one cache."""

    def __init__(self, cache: Cache, samples: int, load_s: float, dispatcher: Dispatcher) -> None:
        self.cache = cache
        self._dispatcher = dispatcher
        self._at = 0
        self._order: Indices = np.arange(samples)
        self._piece = int(min(max(_PIECE_S / max(load_s, 1e-9), 1), _MOST_AT_ONCE))
        self._jobs = 0

    def go_on(self, streams: Iterable[Stream], workers: int) -> None:
        """Keeps a job for each worker, as long as there is room."""
        if self._at == 0:
            self._order = _first_order(streams, self._order)
        while self._jobs < workers and (indices := self._next()) is not None:
            self._jobs += 1
            job = FillJob(self, indices)
            self._dispatcher.submit(job)

    def over(self) -> None:
        """A job is done, or lost."""
        self._jobs -= 1

    def _next(self) -> Indices | None:
        while self._at < len(self._order) and self.cache.is_on and self.cache.keeper.has_room:
            piece = self._order[self._at : self._at + self._piece]
            self._at += len(piece)
            missing = piece[self.cache.index.absent(piece)]
            if len(missing):
                return missing
        return None


class FillJob(AnyWorker):
    """A few samples. What a worker's end leaves undone is left to batches."""

    def __init__(self, warming: Warming, indices: Indices) -> None:
        self.dataset = warming.cache.settings.dataset
        self.due = _AFTER_ALL_OTHERS
        self.alone = False
        self._warming = warming
        self._indices = indices
        self._worker = -1

    def __str__(self) -> str:
        return f"fill the cache of {self.dataset}"

    @property
    def is_wanted(self) -> bool:
        """See Job."""
        return self._warming.cache.is_on

    @property
    def is_spare(self) -> bool:
        """See Job."""
        return True

    def given_to(self, worker: int) -> None:
        """See Job."""
        self._worker = worker

    def task(self, number: int) -> FillTask:
        """See Job."""
        return FillTask(number, self.dataset, self._indices)

    def answered(self, result: Result) -> None:
        """See Job."""
        self._warming.over()
        if isinstance(result, FillDone):
            cache = self._warming.cache
            cache.counts.warmed += len(result.offers.rows)
            cache.offered(self._worker, result.task, self._indices, result.offers)

    def worker_lost(self, loss: WorkerLoss) -> None:
        """See Job."""
        self._warming.over()

    def abandoned(self, text: str) -> None:
        """See Job."""
        self._warming.over()


def _first_order(streams: Iterable[Stream], otherwise: Indices) -> Indices:
    """The first order that is there and has no index that the dataset has not."""
    for stream in streams:
        order = stream.orders.ready.get((stream.settings.seed, 0))
        if order is not None and order.fits:
            return order.indices
    return otherwise
