"""The sample cache of one dataset: what tasks read of it, what workers offer, whether it is on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from loaderd_server.core.actions import Keep
from loaderd_server.core.cacheindex import CacheIndex
from loaderd_server.core.cachememory import CacheMemory
from loaderd_server.core.events import WorkerKept
from loaderd_server.core.extents import Extents
from loaderd_server.core.keeping import Keeper
from loaderd_server.core.nextuse import Reader
from loaderd_server.core.settings import CacheSettings, Policy
from loaderd_server.core.tasks import NOWHERE, Cached, Indices, Offers
from loaderd_server.core.turn import Turn


class CacheState(Enum):
    """OFF is for good; ``Cache.why_off`` tells why."""

    WAITING = "waiting"
    CHECKING = "checking"
    ON = "on"
    OFF = "off"


@dataclass(slots=True)
class CacheCounts:
    """Samples of batches since the daemon started. A miss was loaded from the dataset."""

    hits: int = 0
    disk_hits: int = 0
    misses: int = 0
    #: Loaded by the warm-up.
    warmed: int = 0


class Cache:
    """One dataset's. ``readers`` gives where its trainers load from, as of now."""

    def __init__(
        self, settings: CacheSettings, turn: Turn, readers: Callable[[], list[Reader]]
    ) -> None:
        self.settings = settings
        self.state = CacheState.WAITING
        self.why_off = ""
        #: It is off as the dataset cannot be cached.
        self.is_refused = False
        self._turn = turn
        self._readers = readers
        #: Set when it is on.
        self.index: CacheIndex
        self.keeper: Keeper
        self.memory: CacheMemory
        self.counts = CacheCounts()

    @property
    def is_on(self) -> bool:
        """Whether tasks read from it."""
        return self.state is CacheState.ON

    @property
    def looks_ahead(self) -> bool:
        """Whether it asks orders when samples are used next."""
        return self.settings.policy is Policy.CLAIRVOYANT and self.state is not CacheState.OFF

    # --- on and off -------------------------------------------------------------------------

    def turn_on(self, samples: int, record_bytes: int) -> None:
        """The dataset has so many samples, whose records take about so much."""
        extents = Extents(self.settings.most_bytes, record_bytes)
        self.index = CacheIndex(samples, extents)
        self.keeper = Keeper(self.index, self.settings.policy, self._turn, self._readers)
        self.memory = CacheMemory(self.settings, self.index, self.keeper, self._turn)
        self.state = CacheState.ON
        self.memory.open()

    def turn_off(self, why: str) -> None:
        """The dataset cannot be cached."""
        self.state = CacheState.OFF
        self.why_off = why

    # --- tasks ------------------------------------------------------------------------------

    def read(self, samples: Indices) -> tuple[Cached, Indices]:
        """What a task is told of its samples, and those that it reads: for ``over``."""
        index = self.index
        self.keeper.used(samples)
        memory = np.maximum(index.offset[samples], NOWHERE)
        is_hit = memory >= 0
        if is_hit.all():
            index.pin(samples)
            return Cached(memory, None, _NONE), samples
        pinned = samples[is_hit]
        index.pin(pinned)
        missing = np.flatnonzero(~is_hit)
        wanted = missing[self.keeper.wanted(samples[missing])]
        return Cached(memory, None, wanted), pinned

    def over(self, pinned: Indices) -> None:
        """The task reads them no more."""
        self.index.unpin(pinned)

    def made(self, rows: int, hits: int, disk_hits: int) -> None:
        """A batch was made of so many samples."""
        self.counts.hits += hits
        self.counts.disk_hits += disk_hits
        self.counts.misses += rows - hits - disk_hits

    def offered(self, worker: int, task: int, samples: Indices, offers: Offers) -> None:
        """A worker holds these rows of a task ready: it is told where each goes."""
        memory = np.full(len(offers.rows), NOWHERE, np.int64)
        if self.is_on and len(offers.rows):
            rows = offers.rows
            memory = self.keeper.take_in(worker, task, rows, samples[rows], offers.sizes)
        self._turn.do(Keep(worker, task, offers.rows, memory, None))

    def kept(self, event: WorkerKept) -> None:
        """A worker has written what it was told to."""
        self.keeper.written(event.worker, event.task, event.failed)

    def could_not_read(self, sample: int) -> None:
        """A worker found something else than this sample where it was told to look."""
        self.index.drop(sample)


_NONE: Indices = np.empty(0, np.int64)
