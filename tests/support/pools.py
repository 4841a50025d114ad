"""A worker pool on a running loop, whose events a test awaits one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from tests.support.making import stream_plan
from tests.support.serving import ROOT

from loaderd_server.core.events import DatasetReady, Event, WorkerAnswered, WorkerStarted
from loaderd_server.core.tasks import BatchAddress, ProbeTask, Result
from loaderd_server.workers.plan import DatasetPlan, ProcessPlan, Target
from loaderd_server.workers.pool import WorkerPool

DEADLINE_S = 60.0
E = TypeVar("E")


class Pool:
    """One dataset's pool."""

    def __init__(self, target: str, args: dict[str, Any], process: ProcessPlan) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        plan = DatasetPlan("d", Target(target, args), (str(ROOT),), (stream_plan(),), process)
        loop = asyncio.get_running_loop()
        self.workers = WorkerPool(loop, [plan], self.events.put_nowait)

    async def next(self, kind: type[E]) -> E:
        """The next event, which must be of that kind."""
        event = await asyncio.wait_for(self.events.get(), DEADLINE_S)
        assert isinstance(event, kind), event
        return event

    async def start_worker(self, number: int) -> int:
        """Starts a worker; its pid."""
        self.workers.start_worker(number, "d")
        return (await self.next(WorkerStarted)).pid

    def probe(self, worker: int, *indices: int, task: int = 1) -> None:
        """Gives a worker samples to load."""
        address = BatchAddress("train", 0, 0, 0, 0, 1)
        rows = np.array(indices, dtype=np.int64)
        self.workers.assign(worker, ProbeTask(task, "d", address, rows, None))

    async def result(self) -> Result:
        """The next event, which must be an answer."""
        return (await self.next(WorkerAnswered)).result

    def zygote_pid(self) -> int:
        """The zygote's pid."""
        return next(p.pid for p in self.workers.describe() if p.role == "zygote")


@asynccontextmanager
async def running_pool(
    target: str = "tests.support.case_datasets:Indices",
    args: dict[str, Any] | None = None,
    process: ProcessPlan | None = None,
) -> AsyncIterator[Pool]:
    """A pool whose dataset is built; stopped at the end."""
    pool = Pool(target, args or {}, process or ProcessPlan())
    pool.workers.start()
    try:
        assert isinstance(await pool.next(DatasetReady), DatasetReady)
        yield pool
    finally:
        await pool.workers.stop(3)
