"""Fake cache arenas: what lies where, who reads and who writes it, and what may not meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from loaderd_server.core.actions import CommitCache, DropCache, Keep, MakeCache, PunchCache
from loaderd_server.core.events import CacheCommitted, CachePunched, CacheRefused, WorkerKept
from loaderd_server.core.tasks import NOWHERE, BatchTask, FillTask, Offers

if TYPE_CHECKING:
    from tests.simulation.fleet import FakeWorker, Fleet
    from tests.simulation.world import World

#: For how long after the news of its end a killed worker may have been writing.
_LAST_GASP_S = 0.9


@dataclass(frozen=True)
class Lying:
    """A record in the arena; ``sample`` is -1 for what a killed worker left half written."""

    sample: int
    offset: int
    size_bytes: int

    def meets(self, offset: int, size_bytes: int) -> bool:
        """Whether it shares a byte with a range."""
        return self.offset < offset + size_bytes and offset < self.offset + self.size_bytes


@dataclass
class Shelf:
    """The cache arena of one dataset."""

    size_bytes: int
    #: Offset -> bytes of ranges that have memory.
    memory: dict[int, int] = field(default_factory=dict)
    records: dict[int, Lying] = field(default_factory=dict)

    def has_memory(self, offset: int, size_bytes: int) -> bool:
        """Whether all of a range has."""
        end = offset + size_bytes
        for start in sorted(self.memory):
            if start <= offset < start + self.memory[start]:
                offset = start + self.memory[start]
        return offset >= end

    def write(self, lying: Lying) -> None:
        """What was there is gone."""
        self.clear(lying.offset, lying.size_bytes)
        self.records[lying.offset] = lying

    def clear(self, offset: int, size_bytes: int) -> None:
        """Forgets all records that share a byte with the range."""
        for other in [r for r in self.records.values() if r.meets(offset, size_bytes)]:
            del self.records[other.offset]


class Depot:
    """The caches of all datasets, as workers see them."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._draws = world.draws
        self.shelves: dict[str, Shelf] = {}

    # --- memory -----------------------------------------------------------------------------

    def make(self, action: MakeCache) -> None:
        """An arena without memory."""
        self._world.check.that(action.dataset not in self.shelves, action, "is there already")
        self.shelves[action.dataset] = Shelf(action.size_bytes)

    def drop(self, action: DropCache) -> None:
        """The arena is gone; nobody may read or write it."""
        self._nobody_is_at(action.dataset, 0, self.shelves[action.dataset].size_bytes, action)
        del self.shelves[action.dataset]

    def commit(self, action: CommitCache) -> None:
        """Answers after a while, with a refusal by bad luck."""
        shelf, end = self.shelves[action.dataset], action.offset + action.size_bytes
        self._world.check.that(
            action.size_bytes > 0 and end <= shelf.size_bytes, action, "is outside"
        )
        known = any(start < end and action.offset < start + n for start, n in shelf.memory.items())
        self._world.check.that(not known, action, "has memory already")
        where = (action.dataset, action.offset, action.size_bytes)
        if self._draws.random() < self._world.scenario.refusal_share:
            refusal = CacheRefused(*where, "there is no more memory; raise memory")
            self._world.later(0.01, self._fleet.tell_core, refusal)
        else:
            self._world.later(self._draws.uniform(0, 0.1), self._committed, CacheCommitted(*where))

    def _committed(self, event: CacheCommitted) -> None:
        if event.dataset in self.shelves:
            self.shelves[event.dataset].memory[event.offset] = event.size_bytes
            self._fleet.tell_core(event)

    def punch(self, action: PunchCache) -> None:
        """The memory is gone at once, the answer comes later."""
        shelf = self.shelves[action.dataset]
        self._nobody_is_at(action.dataset, action.offset, action.size_bytes, action)
        has = shelf.has_memory(action.offset, action.size_bytes)
        self._world.check.that(has, action, "has no memory")
        shelf.clear(action.offset, action.size_bytes)
        self._cut(shelf, action.offset, action.offset + action.size_bytes)
        punched = CachePunched(action.dataset, action.offset, action.size_bytes)
        self._world.later(self._draws.uniform(0, 0.05), self._fleet.tell_core, punched)

    @staticmethod
    def _cut(shelf: Shelf, first: int, end: int) -> None:
        for start, size_bytes in list(shelf.memory.items()):
            stop = start + size_bytes
            if start < end and first < stop:
                del shelf.memory[start]
                if start < first:
                    shelf.memory[start] = first - start
                if stop > end:
                    shelf.memory[end] = stop - end

    def _nobody_is_at(self, dataset: str, offset: int, size_bytes: int, *what: object) -> None:
        for worker, lying in self._readings(dataset):
            free = not lying.meets(offset, size_bytes)
            self._world.check.that(free, *what, "is where", worker.number, "reads", lying)

    def _readings(self, dataset: str) -> Iterator[tuple[FakeWorker, Lying]]:
        """What living workers read, or will."""
        shelf = self.shelves[dataset]
        for worker in self._fleet.workers.values():
            if worker.dataset == dataset:
                for task in worker.hands:
                    for lying in self._read_by(shelf, task):
                        yield worker, lying

    def _read_by(self, shelf: Shelf, task: object) -> Iterator[Lying]:
        if isinstance(task, BatchTask) and task.cached is not None:
            for offset in task.cached.memory[task.cached.memory != NOWHERE].tolist():
                if offset in shelf.records:
                    yield shelf.records[offset]

    # --- reading and writing ----------------------------------------------------------------

    def look(self, task: BatchTask) -> int:
        """The rows that lie in the cache, each of which is what it should be: how many."""
        if task.cached is None:
            return 0
        shelf, that = self.shelves[task.dataset], self._world.check.that
        for sample, offset in zip(task.indices.tolist(), task.cached.memory.tolist(), strict=True):
            if offset != NOWHERE:
                lying = shelf.records.get(offset)
                right = lying is not None and lying.sample == sample
                that(right, task, "reads at", offset, "sample", sample, "where there is", lying)
        is_hit = task.cached.memory != NOWHERE
        that(not is_hit[task.cached.offer].any(), task, "is to offer what is there")
        return int(is_hit.sum())

    def offers(self, task: BatchTask | FillTask, rows: list[int]) -> Offers:
        """Some of these rows, held ready."""
        rows = [row for row in rows if self._draws.random() < 0.95]
        sizes = [self._size_bytes(task.dataset, int(task.indices[row])) for row in rows]
        return Offers(np.array(rows, np.int64), np.array(sizes, np.int64))

    def _size_bytes(self, dataset: str, sample: int) -> int:
        script = self._world.truth.datasets[dataset]
        if script.sizes_change and self._draws.random() < 0.2:
            sample += 1
        return script.size_of(sample)

    def keep(self, worker: FakeWorker, action: Keep) -> None:
        """The worker writes what it offered with the task."""
        offer = worker.ready.pop(action.task, None)
        that = self._world.check.that
        that(offer is not None, action, "of what nobody offered")
        assert offer is not None
        task, offers = offer
        same = np.array_equal(offers.rows, action.rows)
        that(same, action, "differs from what was offered:", offers)
        failed = []
        for row, lying in self._promised(task, offers, action):
            if self._draws.random() < 0.05:
                failed.append(row)
            else:
                self._write(worker, lying)
        self._fleet.tell_core(WorkerKept(worker.number, action.task, tuple(failed)))

    def _promised(
        self, task: BatchTask | FillTask, offers: Offers, action: Keep
    ) -> Iterator[tuple[int, Lying]]:
        for row, offset, size in zip(
            offers.rows.tolist(), action.memory.tolist(), offers.sizes.tolist(), strict=True
        ):
            if offset != NOWHERE:
                yield row, Lying(int(task.indices[row]), offset, size)

    def _write(self, worker: FakeWorker, lying: Lying) -> None:
        shelf = self.shelves.get(worker.dataset)
        if shelf is None:
            return
        has = shelf.has_memory(lying.offset, lying.size_bytes)
        self._world.check.that(has, lying, "is written where there is no memory")
        self._nobody_is_at(worker.dataset, lying.offset, lying.size_bytes, lying, "is written and")
        shelf.write(lying)

    def last_gasp(self, worker: FakeWorker) -> None:
        """A worker that was killed had begun to write: when, nobody knows, and how much."""
        for action in worker.keeps:
            offer = worker.ready.get(action.task)
            if offer is None:
                continue
            for _, lying in self._promised(*offer, action):
                half = Lying(-1, lying.offset, lying.size_bytes)
                self._world.later(self._draws.uniform(0, _LAST_GASP_S), self._gasp, worker, half)

    def _gasp(self, worker: FakeWorker, half: Lying) -> None:
        if not self._fleet.is_dead:
            self._write(worker, half)

    # --- the whole --------------------------------------------------------------------------

    def everything(self) -> None:
        """What the core believes to lie in the caches lies there, and nothing is read that it lost."""
        that = self._world.check.that
        for name, cache in self._world.core._caches.by_dataset.items():
            if not cache.is_on:
                continue
            shelf, index = self.shelves[name], cache.index
            here = np.flatnonzero(index.offset >= 0)
            that(len(here) == index.count, name, "counts", index.count, "samples of", len(here))
            for sample in here.tolist():
                lying = shelf.records.get(int(index.offset[sample]))
                right = lying is not None and lying.sample == sample
                that(right, name, "believes in sample", sample, "where there is", lying)
            memory = sum(shelf.memory.values())
            that(
                cache.memory.committed_bytes <= memory, name, "believes in more memory than", memory
            )
            that(index.extents.used_bytes <= memory, name, "uses more than", memory)
            self._pins_are_accounted_for(name, index.readers)

    def _pins_are_accounted_for(self, name: str, readers: np.ndarray) -> None:
        pins = np.zeros(len(readers), np.int64)
        for job in self._world.jobs():
            if job.dataset == name and job.pinned is not None:
                pins[np.unique(job.pinned)] += 1
        wrong = np.flatnonzero(pins != readers)
        self._world.check.that(not len(wrong), name, "pins differ at", wrong, readers[wrong])
