"""Workers and zygotes that die, or live on, in ways that a pool does not ask for."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.support.pools import Pool, running_pool

from loaderd_server.core.events import (
    DatasetFailed,
    DatasetLost,
    DatasetReady,
    Event,
    WorkerEnded,
    WorkerStarted,
)
from loaderd_server.core.tasks import ProbeDone
from loaderd_server.workers import zygote_process
from loaderd_server.workers.plan import ProcessPlan

HERE = "tests.faults.test_worker_processes"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 100))


class Items:
    """``dataset[i]`` is i."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Unforkable(Items):
    """Leaves its zygote unable to fork."""

    def __init__(self) -> None:
        os.fork = self._refuse

    def _refuse(self) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")


class ClosesAll(Items):
    """Item 1 closes every descriptor of its process, and lives on."""

    def __getitem__(self, index: int) -> int:
        if index == 1:
            os.closerange(3, 256)
            time.sleep(600)
        return index


class ClosesStdout(Items):
    """Loading closes stdout."""

    def __getitem__(self, index: int) -> int:
        sys.stdout.close()
        return index


class ShortLived(Items):
    """Its zygote ends soon after it is built, once the file is there."""

    def __init__(self, when: str) -> None:
        if Path(when).exists():
            threading.Timer(0.2, os._exit, [9]).start()


async def _ended(pool: Pool) -> WorkerEnded:
    """The end of a worker that may or may not have said before that it has started."""
    while True:
        event = await pool.next(WorkerStarted | WorkerEnded)  # type: ignore[arg-type]
        if isinstance(event, WorkerEnded):
            return event


async def _ends_soon(pidfd: int) -> bool:
    """Whether a process ends within five seconds; whether it is reaped is no matter here."""
    ready, _, _ = await asyncio.to_thread(select.select, [pidfd], [], [], 5)
    os.close(pidfd)
    return bool(ready)


def test_a_worker_killed_before_it_is_forked_ends_as_soon_as_it_is() -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:Items") as pool:
            os.kill(pool.zygote_pid(), signal.SIGSTOP)
            pool.workers.start_worker(0, "d")
            pool.workers.kill_worker(0, "did not start")
            os.kill(pool.zygote_pid(), signal.SIGCONT)
            assert "SIGKILL" in (await _ended(pool)).how

    run(test())


@pytest.mark.parametrize("zygote_is_stopped", [False, True])
def test_a_worker_that_lost_its_line_is_killed_before_it_is_given_up(
    zygote_is_stopped: bool,
) -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:ClosesAll") as pool:
            pidfd = os.pidfd_open(await pool.start_worker(0))
            if zygote_is_stopped:
                os.kill(pool.zygote_pid(), signal.SIGSTOP)
            pool.probe(0, 0, 1)
            ended = await pool.next(WorkerEnded)
            assert "closed its line" in ended.how
            assert ended.row == 1
            assert await _ends_soon(pidfd)
            if zygote_is_stopped:
                os.kill(pool.zygote_pid(), signal.SIGCONT)

    run(test())


def test_a_fork_that_fails_is_told_and_the_zygote_lives() -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:Unforkable") as pool:
            zygote = pool.zygote_pid()
            for worker in (0, 1):
                pool.workers.start_worker(worker, "d")
                ended = await pool.next(WorkerEnded)
                assert ended.worker == worker
                assert "could not be started" in ended.how
                assert "Resource temporarily unavailable" in ended.how
            assert pool.zygote_pid() == zygote

    run(test())


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_worker_whose_stdout_was_closed_goes_on(start_method: str) -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:ClosesStdout", process=ProcessPlan(start_method)) as pool:
            await pool.start_worker(0)
            for task in (1, 2):
                pool.probe(0, 0, 1, task=task)
                assert await pool.result() == ProbeDone(task)

    run(test())


def test_a_zygote_that_ends_soon_after_each_build_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "_MOST_TRIES_AGAIN", 3)
    switch = tmp_path / "switch"

    async def test() -> None:
        async with running_pool(f"{HERE}:ShortLived", {"when": str(switch)}) as pool:
            switch.touch()
            os.kill(pool.zygote_pid(), signal.SIGKILL)
            # Where the machine is slow, it may end before it has said that it was built.
            event: Event = await pool.next(DatasetLost)
            while not isinstance(event, DatasetFailed):
                event = await pool.next(DatasetLost | DatasetReady | DatasetFailed)  # type: ignore[arg-type]
            failed = event
            assert "code 9, 3 times in a row" in failed.failure.text
            assert "memory limits" in failed.failure.text

    run(test())


def test_a_zygote_that_cannot_be_started_again_is_tried_and_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zygote_process, "_MOST_TRIES_AGAIN", 3)

    async def test() -> None:
        async with running_pool(f"{HERE}:Items") as pool:
            monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
            os.kill(pool.zygote_pid(), signal.SIGKILL)
            await pool.next(DatasetLost)
            failed = await pool.next(DatasetFailed)
            assert "could not be started" in failed.failure.text
            assert "missing" in failed.failure.text

    run(test())


def test_stopping_waits_no_longer_than_its_deadline_for_a_stopped_zygote() -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:Items") as pool:
            pidfds = [os.pidfd_open(pid) for pid in (pool.zygote_pid(), await pool.start_worker(0))]
            os.kill(pool.zygote_pid(), signal.SIGSTOP)
            began = time.monotonic()
            await pool.workers.stop(0.3)
            assert time.monotonic() - began < 3
            for pidfd in pidfds:
                assert await _ends_soon(pidfd)

    run(test())


def test_eight_workers_each_do_their_share() -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:Items") as pool:
            for worker in range(8):
                await pool.start_worker(worker)
            for worker in range(8):
                pool.probe(worker, 0, 1, task=worker)
            done = [await pool.result() for _ in range(8)]
            assert sorted(result.task for result in done) == list(range(8))
            roles = [process.role for process in pool.workers.describe()]
            assert roles == ["zygote", *(f"worker {n}" for n in range(8))]

    run(test())
