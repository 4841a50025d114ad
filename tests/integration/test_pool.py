"""The pool's hold on real zygotes and workers: births, deaths, stops, and what is left (nothing)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from typing import Any

import psutil
import pytest
from tests.support.pools import Pool, running_pool
from tests.support.serving import ROOT

from loaderd_server.core.events import (
    DatasetFailed,
    DatasetLost,
    DatasetReady,
    WorkerEnded,
)
from loaderd_server.core.tasks import ProbeDone
from loaderd_server.workers import process_setup
from loaderd_server.workers.plan import ProcessPlan

CASES = "tests.support.case_datasets"
HERE = "tests.integration.test_pool"


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 100))


class Threaded:
    """Leaves a thread running after it was built."""

    def __init__(self) -> None:
        import threading

        threading.Thread(target=threading.Event().wait, daemon=True).start()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Printing:
    """Writes to stdout when it is built and when it loads."""

    def __init__(self) -> None:
        os.write(1, b"built\n" * 1000)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        sys.stdout.write("loaded\n" * 1000)
        return index


class Exiting:
    """Ends the process that builds it."""

    def __init__(self) -> None:
        os._exit(7)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_answer_in_order_and_end_when_told(start_method: str) -> None:
    async def test() -> None:
        async with running_pool(process=ProcessPlan(start_method)) as pool:
            pid = await pool.start_worker(0)
            for task in (1, 2, 3):
                pool.probe(0, 0, 1, task=task)
            assert [await pool.result() for _ in range(3)] == [ProbeDone(t) for t in (1, 2, 3)]
            pool.workers.stop_worker(0)
            ended = await pool.next(WorkerEnded)
            assert (ended.how, ended.row) == ("exited with code 0", None)
            assert not psutil.pid_exists(pid)

    run(test())


@pytest.mark.parametrize(("how", "says"), [("kill", "signal 9 (SIGKILL)"), ("exit", "code 0")])
def test_a_death_is_told_with_its_manner_and_the_row(how: str, says: str) -> None:
    async def test() -> None:
        async with running_pool(f"{CASES}:Killing", {"at": 5, "how": how}) as pool:
            await pool.start_worker(0)
            pool.probe(0, 1, 2, task=1)
            pool.probe(0, 4, 3, 5, 6, task=2)
            assert await pool.result() == ProbeDone(1)
            ended = await pool.next(WorkerEnded)
            assert says in ended.how
            assert ended.row == 2

    run(test())


def test_a_worker_that_hangs_is_killed_and_the_row_is_told() -> None:
    async def test() -> None:
        async with running_pool(f"{CASES}:Sleeping", {"at": 1, "sleep_s": 600}) as pool:
            await pool.start_worker(0)
            pool.probe(0, 0, task=1)
            assert await pool.result() == ProbeDone(1)
            pool.probe(0, 0, 1, task=2)
            pool.workers.kill_worker(0, "took too long")
            ended = await pool.next(WorkerEnded)
            assert "SIGKILL" in ended.how

    run(test())


def test_stopped_workers_and_zygotes_do_not_stop_the_loop() -> None:
    async def test() -> None:
        async with running_pool() as pool:
            stopped, _well = await pool.start_worker(0), await pool.start_worker(1)
            os.kill(stopped, signal.SIGSTOP)
            os.kill(pool.zygote_pid(), signal.SIGSTOP)
            for task in range(5000):  # more than the socket takes
                pool.probe(0, *range(4), task=task)
            pool.probe(1, 0, task=1)
            assert await pool.result() == ProbeDone(1)
            pool.workers.kill_worker(0, "is stopped")
            os.kill(pool.zygote_pid(), signal.SIGCONT)
            assert "SIGKILL" in (await pool.next(WorkerEnded)).how

    run(test())


def test_a_zygote_that_dies_takes_its_workers_and_is_started_again() -> None:
    async def test() -> None:
        async with running_pool() as pool:
            worker = psutil.Process(await pool.start_worker(0))
            os.kill(pool.zygote_pid(), signal.SIGKILL)
            assert "SIGKILL" in (await pool.next(DatasetLost)).text
            psutil.wait_procs([worker], timeout=5)
            assert not worker.is_running() or worker.status() == "zombie"
            await pool.next(DatasetReady)
            await pool.start_worker(1)
            pool.probe(1, 0)
            assert await pool.result() == ProbeDone(1)

    run(test())


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (f"{HERE}:Exiting", "exited with code 7"),
        (f"{CASES}:Nothing", "has no 'Nothing'"),
        (f"{CASES}:Killing", "TypeError"),
    ],
)
def test_a_dataset_that_cannot_be_built_is_told_once(target: str, says: str) -> None:
    async def test() -> None:
        pool = Pool(target, {}, ProcessPlan())
        pool.workers.start()
        failed = await pool.next(DatasetFailed)
        assert says in failed.failure.text
        await pool.workers.stop(3)
        assert pool.events.empty()

    run(test())


def test_a_dataset_that_prints_disturbs_nothing() -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:Printing") as pool:
            await pool.start_worker(0)
            pool.probe(0, 0, 1)
            assert await pool.result() == ProbeDone(1)

    run(test())


def test_threads_left_by_a_dataset_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running_pool(f"{HERE}:Threaded"):
            pass

    run(test())
    assert "workers.start_method: spawn" in caplog.text


def test_what_the_system_refuses_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with running_pool() as pool:
            pool.workers._note(["workers.niceness: -5 was refused: Permission denied"])
            pool.workers._note(["workers.niceness: -5 was refused: Permission denied"])

    run(test())
    assert caplog.text.count("was refused") == 1


def test_refused_cores_and_niceness_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    monkeypatch.setattr(os, "setpriority", refuse)
    refused = process_setup.settle(0, "cores", -5)
    assert refused == [
        "workers.affinity: cores was refused: Operation not permitted",
        "workers.niceness: -5 was refused: Operation not permitted",
    ]


def test_zygote_and_workers_die_with_the_daemon() -> None:
    script = f"""
import asyncio
from tests.support.pools import running_pool

async def main():
    async with running_pool({CASES + ":Sleeping"!r}, {{"at": 0, "sleep_s": 600}}) as pool:
        pids = [await pool.start_worker(n) for n in range(2)]
        pool.probe(0, 0)
        print(pool.zygote_pid(), *pids, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
    daemon = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert daemon.stdout is not None
    processes = [psutil.Process(int(pid)) for pid in daemon.stdout.readline().split()]
    assert len(processes) == 3
    began = time.monotonic()
    daemon.kill()
    daemon.wait(10)
    daemon.stdout.close()
    _gone, alive = psutil.wait_procs(processes, timeout=2)
    assert not [p for p in alive if p.status() != "zombie"]
    assert time.monotonic() - began < 3
