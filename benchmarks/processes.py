"""Jobs in processes of their own, started from a server that has imported torch already."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

DEADLINE_S = 180.0


class JobFailed(RuntimeError):
    """A job raised, or gave no result in time; the text has its traceback."""


@dataclass(frozen=True)
class Meeting:
    """Where the jobs of a run wait for each other; each has its own end."""

    pipe: Connection

    def wait(self) -> None:
        """Returns once every job of the run is here.

        Raises: JobFailed where another has failed.
        """
        self.pipe.send(_Here())
        if not self.pipe.poll(DEADLINE_S):
            raise JobFailed(f"the others did not come within {DEADLINE_S:.0f} s")
        self.pipe.recv()


#: Called in its process.
Job = Callable[[Meeting], Any]


@dataclass(frozen=True)
class _Here:
    """A job waits for the others."""


@dataclass(frozen=True)
class _Result:
    value: Any


@dataclass(frozen=True)
class _Trace:
    text: str


def together(jobs: Sequence[Job]) -> list[Any]:
    """Runs the jobs at the same time; their results in that order.

    Raises: JobFailed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.trainers"])
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    for job in jobs:
        ours, theirs = context.Pipe()
        process: BaseProcess = context.Process(target=_run, args=(job, theirs))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return _results(pipes)
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.close()
            _end(process)


def _run(job: Job, pipe: Connection) -> None:
    torch.set_num_threads(1)
    try:
        pipe.send(_Result(job(Meeting(pipe))))
    except BaseException:  # noqa: BLE001 - the parent raises it
        pipe.send(_Trace(traceback.format_exc()))


def _results(pipes: list[Connection]) -> list[Any]:
    """Listens to all jobs, lets them go on when all have come to their meeting."""
    results: dict[Connection, Any] = {}
    here: list[Connection] = []
    while len(results) < len(pipes):
        heard: list[Any] = wait([pipe for pipe in pipes if pipe not in results], DEADLINE_S)
        if not heard:
            raise JobFailed(f"no job said anything for {DEADLINE_S:.0f} s")
        for pipe in heard:
            message = _received(pipe)
            if isinstance(message, _Result):
                results[pipe] = message.value
            else:
                here.append(pipe)
        if len(here) == len(pipes):
            for pipe in here:
                pipe.send(None)
            here = []
    return [results[pipe] for pipe in pipes]


def _received(pipe: Connection) -> _Result | _Here:
    try:
        message: _Result | _Here | _Trace = pipe.recv()
    except EOFError:
        raise JobFailed("the process ended without a result") from None
    if isinstance(message, _Trace):
        raise JobFailed(message.text)
    return message


def _end(process: BaseProcess) -> None:
    process.join(10)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
