"""Iterable datasets in real zygotes and workers: what is told of them, batches, deaths, resumes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest
from tests.support.making import read
from tests.support.pools import Pool, running_pool

from loaderd_protocol import arena
from loaderd_server.core.events import DatasetReady, WorkerEnded
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    IterateTask,
    IteratorOver,
    Place,
    Result,
)
from loaderd_server.workers.plan import ProcessPlan

STREAMS = "tests.support.streams"
PLACE = Place(0, arena.PAGE_BYTES, arena.PAGE_BYTES)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 100))


class Slot:
    """A pool's arena of two pages, of which the second is the slot."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        size = 2 * arena.PAGE_BYTES
        descriptor = arena.create("test", size)
        pool.workers.add_arena(0, descriptor, size)
        self._mapping = arena.map_shared(descriptor, size, writable=False)
        os.close(descriptor)

    async def iterate(self, worker: int, unit: int, state: bytes = b"") -> Result:
        """The answer to a task of a unit of four samples; ``state``: right before it."""
        address = BatchAddress("train", 0, 0, unit * 2 + 1, 0, 1)
        task = IterateTask(1, "d", address, 1, 2, unit, 4, False, PLACE, state, unit)
        self._pool.workers.assign(worker, task)
        return await self._pool.result()

    async def unit(self, worker: int, unit: int, state: bytes = b"") -> tuple[list[int], bytes]:
        """The unit's samples and the state after them."""
        done = await self.iterate(worker, unit, state)
        assert isinstance(done, BatchDone), done
        slot = np.frombuffer(self._mapping, np.uint8)[PLACE.offset :].copy()
        return read(slot, done).tolist(), done.state


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_generator_function_is_iterated_by_a_worker(start_method: str) -> None:
    async def test() -> None:
        process = ProcessPlan(start_method)
        async with running_pool(f"{STREAMS}:endless", {"start": 10}, process) as pool:
            slot = Slot(pool)
            await pool.start_worker(0)
            assert (await slot.unit(0, 0))[0] == [11, 13, 15, 17]
            assert (await slot.unit(0, 1))[0] == [19, 21, 23, 25]

    run(test())


def test_a_worker_that_dies_is_followed_by_one_that_skips_or_takes_the_state(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def test() -> None:
        async with running_pool(f"{STREAMS}:Stateful") as pool:
            slot = Slot(pool)
            await pool.start_worker(0)
            _first, state = await slot.unit(0, 0)
            pool.workers.kill_worker(0, "is killed by a test")
            await pool.next(WorkerEnded)
            await pool.start_worker(1)
            assert (await slot.unit(1, 1, state))[0] == [9001, 11002, 13003, 15004]
            await pool.start_worker(2)
            assert (await slot.unit(2, 1))[0] == [9005, 11006, 13007, 15008]
            assert (await slot.unit(2, 3))[0] == [25013, 27014, 29015]
            assert await slot.iterate(2, 4) == IteratorOver(1, 4)

    run(test())
    said = capfd.readouterr().err
    assert "stream train (worker 1, pid" in said
    assert "shard 1 resumes by its state_dict of batch 1" in said
    assert "shard 1 resumes at batch 1 by skipping 4 samples" in said


@pytest.mark.parametrize(
    ("target", "length", "is_iterable"),
    [
        (f"{STREAMS}:Sharded", None, True),
        (f"{STREAMS}:IterOnly", 10, True),
        (f"{STREAMS}:endless", None, True),
        ("tests.support.case_datasets:Counting", 40, False),
    ],
)
def test_a_zygote_tells_whether_its_dataset_is_iterable(
    target: str, length: int | None, is_iterable: bool
) -> None:
    async def test() -> None:
        pool = Pool(target, {}, ProcessPlan())
        pool.workers.start()
        try:
            assert await pool.next(DatasetReady) == DatasetReady("d", length, is_iterable)
        finally:
            await pool.workers.stop(3)

    run(test())
