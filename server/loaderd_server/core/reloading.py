"""Reloading: streams come and go while the daemon runs; what a removed one leaves behind is cleared away.

A changed stream is the old one removed and a new one of its name. What trainers have in hand stays theirs:
an arena is dropped when the last of its batches is released and no worker fills one any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.actions import DropArena, Severity
from loaderd_server.core.arenas import ArenaDesk, ArenaRequest
from loaderd_server.core.caches import Caches
from loaderd_server.core.dispatcher import Dispatcher
from loaderd_server.core.events import DatasetReady, StreamsChanged
from loaderd_server.core.largeslots import LargeSlots
from loaderd_server.core.opening import Opening
from loaderd_server.core.scheduler import Scheduler
from loaderd_server.core.settings import CoreSettings, StreamSettings
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.subscriptions import Subscriptions
from loaderd_server.core.turn import Turn


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the core that know of streams."""

    dispatcher: Dispatcher
    scheduler: Scheduler
    arenas: ArenaDesk
    opening: Opening
    subscriptions: Subscriptions
    large: LargeSlots
    caches: Caches


class Reloading:
    """The only one that adds streams to a running core, and takes them out."""

    def __init__(
        self, turn: Turn, settings: CoreSettings, streams: dict[str, Stream], parts: Parts
    ) -> None:
        self._turn = turn
        self._settings = settings
        self._streams = streams
        self._parts = parts
        parts.opening.memory_may_come = self._wait_for_memory
        #: What was last heard of each dataset: that it is built, or why it failed.
        self._datasets: dict[str, DatasetReady | Failure] = {}
        #: Removed streams that have arenas, or are about to be given one.
        self._leaving: list[Stream] = []
        #: New streams' arenas that were refused while removed streams still had some.
        self._waiting: list[ArenaRequest] = []

    # --- datasets ---------------------------------------------------------------------------

    def dataset_ready(self, event: DatasetReady) -> None:
        """Streams that come later need not wait for it."""
        self._datasets[event.dataset] = event

    def dataset_failed(self, dataset: str, failure: Failure) -> None:
        """Streams that come later are closed for the same reason."""
        self._datasets[dataset] = failure

    # --- streams ----------------------------------------------------------------------------

    def streams_changed(self, event: StreamsChanged) -> None:
        """The old ones end, then the new ones begin; all others are not touched."""
        changed = {settings.name for settings in event.added}
        for name in event.removed:
            if name in self._streams:
                self._remove(self._streams.pop(name), is_changed=name in changed)
        self._parts.dispatcher.drop_unwanted("its stream was removed")
        for dataset in event.datasets_gone:
            self._parts.dispatcher.remove_dataset(dataset)
            self._datasets.pop(dataset, None)
            self._parts.caches.remove(dataset)
        for cache in event.caches:
            self._parts.caches.add(cache)
        self.drop_unused()
        share_bytes = self._settings.slots_bytes // max(1, len(self._streams) + len(event.added))
        for stream in self._streams.values():
            stream.share_bytes = share_bytes
        for settings in event.added:
            self._add(settings, share_bytes)

    def _remove(self, stream: Stream, *, is_changed: bool) -> None:
        was_closed = stream.phase is Phase.CLOSED
        stream.phase = Phase.CLOSED
        stream.is_removed = True
        stream.failure = Failure(ErrorCode.STREAM_ENDED, -1, "", _farewell(stream, is_changed))
        self._waiting = [request for request in self._waiting if request.stream is not stream]
        if not was_closed:
            for cursor in stream.cursors:  # what one leaves must not go to the next to be sent away
                cursor.grant, cursor.stalled_since = 0, None
            self._parts.subscriptions.stream_closed(stream)
        self._parts.large.serve(stream)
        self._parts.scheduler.remove(stream)
        self._leaving.append(stream)

    def _add(self, settings: StreamSettings, share_bytes: int) -> None:
        stream = Stream(settings, self._settings.workers.count, share_bytes)
        stream.has_room = self._parts.dispatcher.has_room
        stream.cache = self._parts.caches.by_dataset.get(settings.dataset)
        self._streams[stream.name] = stream
        self._parts.dispatcher.add_dataset(settings.dataset)
        self._parts.scheduler.add(stream)
        self._parts.opening.check(stream)
        known = self._datasets.get(settings.dataset)
        if isinstance(known, Failure):
            self._parts.opening.close(stream, known)
        elif known is not None:
            self._parts.caches.dataset_ready(known)

    # --- memory -----------------------------------------------------------------------------

    def drop_unused(self) -> None:
        """Gives back the arenas of removed streams that nobody reads or writes any more."""
        if not self._leaving:
            return
        before_bytes = self._left_bytes()
        for stream in self._leaving:
            for arena in stream.pool.unused_arenas():
                stream.arena_bytes -= stream.pool.drop(arena)
                self._turn.do(DropArena(arena))
        gone = [s for s in self._leaving if not s.pool.slots and not self._parts.arenas.awaits(s)]
        for stream in gone:
            stream.let_go()
            self._leaving.remove(stream)
        if self._left_bytes() == before_bytes:
            return
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._parts.arenas.ask(request)

    def _left_bytes(self) -> int:
        return sum(stream.arena_bytes for stream in self._leaving)

    def _wait_for_memory(self, request: ArenaRequest, text: str) -> bool:
        """Whether the request is to be made again, as removed streams still have memory to give back."""
        left_bytes = self._left_bytes()
        if not left_bytes:
            return False
        self._waiting.append(request)
        self._turn.log(
            Severity.WARNING,
            f"stream {request.stream.name!r} waits for memory: removed streams still have "
            f"{left_bytes} bytes, until trainers release their last batches ({text})",
        )
        return True


def _farewell(stream: Stream, is_changed: bool) -> str:
    if is_changed:
        return (
            f"stream {stream.name!r} ended: it was changed by a reload of the configuration. Batches "
            f"in hand stay valid. Connect again for batches as streams.{stream.name} in the "
            f"configuration file now has them"
        )
    return (
        f"stream {stream.name!r} ended: it was removed by a reload of the configuration. Batches in "
        f"hand stay valid. Put streams.{stream.name} back into the configuration file and send "
        f"SIGHUP, or connect to a stream that is there (`loaderd status` lists them)"
    )
