"""Jobs in processes of their own, started from a server that has imported torch already."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

DEADLINE_S = 180.0
#: A job is called in its process with a barrier that all jobs of the run share.
Job = Callable[[Barrier], Any]


class JobFailed(RuntimeError):
    """A job raised, or gave no result in time; the text has its traceback."""


@dataclass(frozen=True)
class _Trace:
    text: str


def together(jobs: Sequence[Job]) -> list[Any]:
    """Runs the jobs at the same time; their results in that order.

    Raises: JobFailed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.trainers"])
    barrier = context.Barrier(len(jobs))
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    for job in jobs:
        receiver, sender = context.Pipe(duplex=False)
        process: BaseProcess = context.Process(target=_run, args=(job, barrier, sender))
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    try:
        return [_result(pipe) for pipe in pipes]
    finally:
        for process in processes:
            _end(process)


def _run(job: Job, barrier: Barrier, pipe: Connection) -> None:
    torch.set_num_threads(1)
    try:
        result = job(barrier)
    except BaseException:  # noqa: BLE001 - the parent raises it
        barrier.abort()
        result = _Trace(traceback.format_exc())
    pipe.send(result)


def _result(pipe: Connection) -> Any:
    if not pipe.poll(DEADLINE_S):
        raise JobFailed(f"no result in {DEADLINE_S:.0f} s")
    try:
        result = pipe.recv()
    except EOFError:
        raise JobFailed("the process ended without a result") from None
    if isinstance(result, _Trace):
        raise JobFailed(result.text)
    return result


def _end(process: BaseProcess) -> None:
    process.join(10)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
