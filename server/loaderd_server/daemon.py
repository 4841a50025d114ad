"""The daemon: builds every part, connects them, turns actions into deeds, stops in reverse order.

Start: run directory, memory check, zygotes, ZeroMQ, attach socket; then datasets, orders and arenas
come as events, and when every stream is open or closed one line says ready.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from loaderd_protocol.address import Address
from loaderd_protocol.messages import Done, Leave, Release, Start, Subscribe, Unsubscribe
from loaderd_server import systemd
from loaderd_server.arenas import Arena, ArenaStore
from loaderd_server.attach import AttachPoint
from loaderd_server.complaints import Complaints
from loaderd_server.core.actions import (
    Action,
    Assign,
    DropArena,
    KillWorker,
    Log,
    MakeArena,
    Severity,
    StartWorker,
    StopWorker,
    StreamClosed,
    StreamOpened,
    Tell,
    WakeAt,
)
from loaderd_server.core.engine import Core
from loaderd_server.core.events import (
    Event,
    LeaseBegan,
    LeaseEnded,
    StreamsChanged,
    TimerFired,
    TrainerSaid,
)
from loaderd_server.core.settings import CoreSettings
from loaderd_server.gateway import Gateway
from loaderd_server.memory import Budget
from loaderd_server.readiness import Readiness
from loaderd_server.reload import Change
from loaderd_server.units import show_size
from loaderd_server.workers.plan import DatasetPlan
from loaderd_server.workers.pool import WorkerPool

log = logging.getLogger("loaderd")

_LEVELS = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}
#: Of the 3 s that stopping may take, what zygotes and workers get.
_STOP_S = 2.0


class Daemon:
    """All parts, wired. Everything runs in the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        settings: CoreSettings,
        plans: tuple[DatasetPlan, ...],
        budget: Budget,
    ) -> None:
        self._loop = loop
        self._address = address
        self._settings = settings
        self._budget = budget
        self._began = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._events: deque[Event] = deque()
        self._handling = False
        self._stopping = False
        self.finished: asyncio.Future[int] = loop.create_future()
        complaints = Complaints()
        self._core = Core(settings)
        self._pool = WorkerPool(loop, plans, self.happened)
        self._arenas = ArenaStore(budget, self.happened, self._arena_made)
        names = tuple(stream.name for stream in settings.streams)
        self._readiness = Readiness(names)
        #: Whether it was told that the streams are served, and whether they were ever changed.
        self._is_ready = self._is_reloaded = False
        self._attach = AttachPoint(loop, address, names, self._arenas.all, self, complaints)
        self._gateway = Gateway(loop, address, self, complaints)
        self._deeds: dict[type, Callable[[Any], None]] = {
            Tell: lambda action: self._gateway.send(action.lease, action.message),
            StartWorker: lambda action: self._pool.start_worker(action.worker, action.dataset),
            StopWorker: lambda action: self._pool.stop_worker(action.worker),
            KillWorker: lambda action: self._pool.kill_worker(action.worker, action.why),
            Assign: lambda action: self._pool.assign(action.worker, action.task),
            MakeArena: self._arenas.make,
            DropArena: self._drop_arena,
            StreamOpened: self._stream_opened,
            StreamClosed: self._stream_closed,
            WakeAt: self._wake_at,
            Log: lambda action: log.log(_LEVELS[action.severity], "%s", action.text),
        }

    # --- starting and stopping --------------------------------------------------------------

    def start(self) -> None:
        """Starts every part; the daemon is ready when its streams are."""
        self._pool.start()
        self._gateway.open()
        self._attach.open()
        self._do(self._core.start(self._loop.time()))

    async def stop(self) -> None:
        """Stops every part, in reverse order, within 3 s."""
        systemd.notify("STOPPING=1")
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._attach.close()
        self._gateway.close()
        await self._pool.stop(_STOP_S)
        self._arenas.close()

    def kill(self) -> None:
        """Ends every process at once."""
        self._pool.kill_all()

    # --- events -----------------------------------------------------------------------------

    def happened(self, event: Event) -> None:
        """Tells the core of an event and carries out what it decides."""
        if self._stopping:  # leases that end now are no deaths: what they hold goes to nobody else
            return
        self._events.append(event)
        if self._handling:  # an action brought it about: the actions before it come first
            return
        self._handling = True
        try:
            while self._events:
                event = self._events.popleft()
                self._do(self._core.handle(event, self._loop.time()))
        except Exception:
            # Our own mistake: going on with a state that may be wrong could corrupt batches.
            log.exception("the daemon failed on %s and ends", type(event).__name__)
            self._finish(1)
        finally:
            self._handling = False

    def lease_of(self, token: bytes) -> int | None:
        """See TrainerHandler."""
        return self._attach.lease_of(token)

    def lease_began(self, lease: int) -> None:
        """See TrainerHandler."""
        log.info("trainer %d (pid %d) attached", lease, self._attach.pid_of(lease))
        self.happened(LeaseBegan(lease))

    def trainer_said(self, lease: int, message: Subscribe | Start | Unsubscribe) -> None:
        """See TrainerHandler."""
        self.happened(TrainerSaid(lease, message))

    def trainer_is_deaf(self, lease: int) -> None:
        """See TrainerHandler."""
        self._loop.call_soon(self._attach.end, lease, "takes no more messages")

    def lease_said(self, lease: int, message: Release | Leave | Done) -> None:
        """See LeaseHandler."""
        self.happened(TrainerSaid(lease, message))

    def lease_ended(self, lease: int) -> None:
        """See LeaseHandler."""
        log.info("trainer %d is gone", lease)
        self._gateway.forget(lease)
        self.happened(LeaseEnded(lease))

    def _arena_made(self, arena: Arena) -> None:
        self._pool.add_arena(arena.number, arena.descriptor, arena.size_bytes)
        self._attach.add_arena(arena)

    # --- reloading --------------------------------------------------------------------------

    def closed_streams(self) -> tuple[str, ...]:
        """See Reloadable."""
        return tuple(self._readiness.closed)

    def reload_began(self) -> None:
        """See Reloadable."""
        systemd.notify_reloading()

    def reload_refused(self) -> None:
        """See Reloadable."""
        if self._is_ready:
            systemd.notify("READY=1")

    def reload(
        self, change: Change, settings: CoreSettings, plans: tuple[DatasetPlan, ...]
    ) -> None:
        """See Reloadable."""
        self._is_ready, self._is_reloaded = False, True
        try:
            self._change_datasets(change, plans)
        except Exception:
            log.exception("the daemon failed on a reload and ends")
            self._finish(1)
            return
        self._attach.set_streams(tuple(stream.name for stream in settings.streams))
        removed, new = change.removed + change.changed, change.added + change.changed
        self._readiness.streams_changed(removed, new)
        added = tuple(stream for stream in settings.streams if stream.name in new)
        self.happened(StreamsChanged(removed, added, change.datasets_gone))
        if not self._is_ready:
            self._settled()

    def _change_datasets(self, change: Change, plans: tuple[DatasetPlan, ...]) -> None:
        for dataset in change.datasets_gone:
            self._pool.remove_dataset(dataset)
        for plan in plans:
            if plan.name in change.datasets_new:
                self._pool.add_dataset(plan)
            else:
                self._pool.change_plan(plan)

    def _drop_arena(self, action: DropArena) -> None:
        self._pool.drop_arena(action.arena)
        self._arenas.drop(action.arena)

    # --- actions ----------------------------------------------------------------------------

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self._deeds[type(action)](action)

    def _wake_at(self, action: WakeAt) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(action.at, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.happened(TimerFired())

    def _stream_opened(self, action: StreamOpened) -> None:
        self._readiness.stream_opened(action)
        self._settled()

    def _stream_closed(self, action: StreamClosed) -> None:
        self._readiness.stream_closed(action.stream, action.text)
        log.error("stream %s cannot be served: %s", action.stream, action.text)
        self._settled()

    def _settled(self) -> None:
        if not self._readiness.is_settled:
            return
        if not self._readiness.open and not self._is_reloaded:
            log.error("no stream can be served; the daemon ends")
            memory = all("memory" in text for text in self._readiness.closed.values())
            self._finish(4 if memory else 5)
            return
        self._is_ready = True
        log.info(
            "ready at %s: %s; arenas %s of %s; up to %d workers (pid %d)",
            self._address.run_dir, self._readiness, show_size(self._arenas.total_bytes()),
            show_size(self._budget.budget_bytes), self._settings.workers.count, os.getpid(),
        )  # fmt: skip
        systemd.notify("READY=1")

    def _finish(self, code: int) -> None:
        if not self.finished.done():
            self.finished.set_result(code)

    # --- status -----------------------------------------------------------------------------

    def status_document(self) -> str:
        """See TrainerHandler; docs/operations.md tells the fields."""
        core = self._core.status()
        trainers = [
            {**asdict(cursor), "pid": self._attach.pid_of(cursor.lease)} for cursor in core.cursors
        ]
        document = {
            "version": version("loaderd"),
            "pid": os.getpid(),
            "run_dir": os.fspath(self._address.run_dir),
            "uptime_s": time.monotonic() - self._began,
            "memory": {
                "budget_bytes": self._budget.budget_bytes,
                "arena_bytes": self._arenas.total_bytes(),
                "available_bytes": self._budget.machine.available().size_bytes,
            },
            "streams": [asdict(stream) for stream in core.streams],
            "workers": [asdict(worker) for worker in core.workers],
            "trainers": trainers,
            "processes": [asdict(process) for process in self._pool.describe()],
        }
        return json.dumps(document)
