"""All caches: which datasets have one, the check before it is used, and the news that reach it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.actions import DropCache, Severity
from loaderd_server.core.cache import Cache, CacheState
from loaderd_server.core.cachechecks import CheckJob
from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.events import (
    CacheCommitted,
    CachePunched,
    CacheRefused,
    DatasetReady,
    WorkerKept,
)
from loaderd_server.core.nextuse import Reader, readers_of
from loaderd_server.core.settings import CacheSettings
from loaderd_server.core.streams import Stream
from loaderd_server.core.tasks import CheckDone
from loaderd_server.core.turn import Turn
from loaderd_server.core.warming import Warming

StreamsOf = Callable[[str], Iterable[Stream]]


class Caches:
    """``streams_of`` gives a dataset's streams."""

    def __init__(
        self,
        turn: Turn,
        dispatcher: Dispatcher,
        workers: int,
        settings: Iterable[CacheSettings],
        streams_of: StreamsOf,
    ) -> None:
        self._turn = turn
        self._dispatcher = dispatcher
        self._workers = workers
        self._streams_of = streams_of
        self.by_dataset: dict[str, Cache] = {}
        self._warmings: dict[str, Warming] = {}
        #: Has a dataset's streams opened, or closed for a reason; set when the core is wired.
        self.go_on: Callable[[DatasetReady], None]
        self.close: Callable[[Stream, Failure], None]
        for one in settings:
            self.add(one)

    def add(self, settings: CacheSettings) -> None:
        """A dataset that is to be cached; it has not been built yet."""
        readers = partial(self._readers, settings.dataset)
        self.by_dataset[settings.dataset] = Cache(settings, self._turn, readers)

    def _readers(self, dataset: str) -> list[Reader]:
        return readers_of(self._streams_of(dataset))

    def remove(self, dataset: str) -> None:
        """The dataset is gone, and its workers: nobody comes to its cache any more."""
        cache = self.by_dataset.pop(dataset, None)
        self._warmings.pop(dataset, None)
        if cache is None:
            return
        if cache.is_on:
            self._turn.do(DropCache(dataset))
        cache.turn_off("its dataset was removed")

    # --- before it is used ------------------------------------------------------------------

    def dataset_ready(self, event: DatasetReady) -> None:
        """The dataset is built: its streams are opened, after the check where they depend on it."""
        cache = self.by_dataset.get(event.dataset)
        if cache is None:
            self.go_on(event)
            return
        if cache.state is CacheState.WAITING:
            self._look_at(cache, event)
        if cache.state is CacheState.OFF and cache.settings.is_demanded and cache.is_refused:
            self._close_all(cache)
        elif cache.state is not CacheState.CHECKING or not cache.settings.is_demanded:
            self.go_on(event)

    def _look_at(self, cache: Cache, event: DatasetReady) -> None:
        why = _why_not(event)
        if why:
            self._refuse(cache, why)
            return
        if not event.length:
            cache.turn_off("the dataset is empty")
            return
        cache.state = CacheState.CHECKING
        told = partial(self._checked, cache, event)
        job = CheckJob(event.dataset, event.length, self._turn.tick, told, self._dispatcher.submit)
        self._dispatcher.submit(job)

    def _checked(self, cache: Cache, event: DatasetReady, found: CheckDone | None) -> None:
        if cache.state is not CacheState.CHECKING:
            return
        if found is not None and found.fault:
            self._refuse(cache, found.fault)
        else:
            self._turn_on(cache, event, found)
        if cache.settings.is_demanded:  # its streams have waited for this
            self.dataset_ready(event)

    def _turn_on(self, cache: Cache, event: DatasetReady, found: CheckDone | None) -> None:
        if found is None or not found.record_bytes:
            self._turn.log(
                Severity.WARNING,
                f"dataset {event.dataset!r}: none of the samples that were to be looked at before it "
                f"is cached could be loaded; it is taken on trust that they are not random",
            )
        record_bytes = found.record_bytes if found is not None else 0
        if record_bytes > cache.settings.most_bytes:
            self._too_small(cache, record_bytes)
            return
        assert event.length is not None
        cache.turn_on(event.length, record_bytes)
        if cache.settings.warms:
            load_s = found.load_s if found is not None else 0.0
            self._warmings[event.dataset] = Warming(cache, event.length, load_s, self._dispatcher)

    def _too_small(self, cache: Cache, record_bytes: int) -> None:
        dataset, most = cache.settings.dataset, cache.settings.most_bytes
        text = (
            f"the cache of {dataset!r} may take {most} bytes, and one sample needs {record_bytes}: "
            f"nothing is cached. Raise datasets.{dataset}.cache.bytes or `memory`"
        )
        self._turn.log(Severity.ERROR, text)
        cache.turn_off(text)

    def _refuse(self, cache: Cache, why: str) -> None:
        """The dataset cannot be cached."""
        cache.turn_off(why)
        cache.is_refused = True
        if not cache.settings.is_demanded:
            dataset = cache.settings.dataset
            self._turn.log(Severity.INFO, f"dataset {dataset!r} is not cached: {why}")

    def _close_all(self, cache: Cache) -> None:
        dataset = cache.settings.dataset
        text = (
            f"dataset {dataset!r} cannot be cached, as datasets.{dataset}.cache asks for: {cache.why_off}. "
            f"Or set datasets.{dataset}.cache: off"
        )
        for stream in tuple(self._streams_of(dataset)):
            self.close(stream, Failure(ErrorCode.STREAM_ENDED, -1, "", text))

    # --- news -------------------------------------------------------------------------------

    def committed(self, event: CacheCommitted) -> None:
        """A range has memory."""
        cache = self.by_dataset.get(event.dataset)
        if cache is not None and cache.is_on:
            cache.memory.committed(event.offset, event.size_bytes)

    def refused(self, event: CacheRefused) -> None:
        """There is no memory for a range."""
        cache = self.by_dataset.get(event.dataset)
        if cache is not None and cache.is_on:
            cache.memory.refused(event.offset, event.text)

    def punched(self, event: CachePunched) -> None:
        """A range has no memory any more."""
        cache = self.by_dataset.get(event.dataset)
        if cache is not None and cache.is_on:
            cache.memory.punched(event.offset, event.size_bytes)

    def kept(self, event: WorkerKept) -> None:
        """A worker has written what it was told to."""
        worker = self._dispatcher.workers.get(event.worker)
        cache = None if worker is None else self.by_dataset.get(worker.dataset)
        if cache is not None and cache.is_on:
            cache.kept(event)

    def worker_ended(self, worker: int) -> None:
        """A worker is gone, and what it was to write with it."""
        for cache in self.by_dataset.values():
            if cache.is_on:
                cache.keeper.worker_ended(worker)

    def dataset_lost(self, dataset: str) -> None:
        """All workers of a dataset are gone."""
        cache = self.by_dataset.get(dataset)
        if cache is not None and cache.is_on:
            cache.keeper.all_ended()

    def pump(self) -> None:
        """Has idle workers fill caches that are to be warm."""
        for dataset, warming in self._warmings.items():
            warming.go_on(self._streams_of(dataset), self._workers)


def _why_not(event: DatasetReady) -> str:
    if event.is_iterable:
        return "it is iterable: its samples have no index by which they could be found again"
    if event.uncacheable:
        return event.uncacheable
    if event.cacheable is False:
        return "it says cacheable = False"
    return ""
