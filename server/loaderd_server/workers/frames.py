"""Tasks, results and the zygote's messages as frames on a socket pair: u32 length, then msgpack.

Both ends are this package in one version, so frames are as plain as they can be: ``[kind, ...]``.
Descriptors ride on the frame that names them (SCM_RIGHTS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, TypeVar

import msgpack

from loaderd_protocol.errors import Failure
from loaderd_protocol.records import from_array, to_array
from loaderd_server.core.tasks import (
    BatchDone,
    BatchTask,
    BatchTooLarge,
    CheckDone,
    CheckTask,
    FillDone,
    FillTask,
    IterateTask,
    IteratorOver,
    MeasureDone,
    MeasureIterateTask,
    MeasureTask,
    OrderTask,
    ProbeDone,
    ProbeTask,
    Result,
    Task,
    TaskFailed,
)

R = TypeVar("R")
_LENGTH = struct.Struct("<I")
Fields = list[Any]


class Kind(IntEnum):
    """What a frame is."""

    # daemon to zygote
    PLAN = 1
    FORK = 2
    # to workers too
    NEW_PLAN = 3
    # zygote to daemon
    BUILT = 10
    NOT_BUILT = 11
    FORKED = 12
    ENDED = 13
    NOT_FORKED = 14
    # daemon to worker
    ARENA = 20
    TASK = 21
    STOP = 22
    ARENA_GONE = 23
    # worker to daemon
    HELLO = 30
    RESULT = 31
    ORDER = 32


def pack(kind: Kind, *fields: object) -> bytes:
    """One frame, with its length."""
    body: bytes = msgpack.packb([int(kind), *fields], unicode_errors="surrogatepass")
    return _LENGTH.pack(len(body)) + body


class FrameBuffer:
    """Bytes as they come, frames as they are whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Takes in what was received."""
        self._bytes += data

    def frames(self) -> Iterator[tuple[Kind, Fields]]:
        """The whole frames so far."""
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                return
            body = msgpack.unpackb(
                memoryview(self._bytes)[_LENGTH.size : end].tobytes(),
                strict_map_key=False,
                unicode_errors="surrogatepass",
            )
            del self._bytes[:end]
            yield Kind(body[0]), body[1:]


def _by_name(*kinds: type[R]) -> dict[str, type[R]]:
    return {kind.__name__: kind for kind in kinds}


_TASKS: dict[str, type[Task]] = _by_name(
    OrderTask,
    MeasureTask,
    BatchTask,
    ProbeTask,
    IterateTask,
    MeasureIterateTask,
    CheckTask,
    FillTask,
)
#: Results that fit a frame; OrderDone's arrays travel as a descriptor (Kind.ORDER).
_RESULTS: dict[str, type[Result]] = _by_name(
    MeasureDone,
    BatchDone,
    BatchTooLarge,
    ProbeDone,
    TaskFailed,
    IteratorOver,
    CheckDone,
    FillDone,
)


def task_fields(task: Task) -> Fields:
    """A task as the fields of a TASK frame."""
    return [type(task).__name__, to_array(task)]


def read_task(fields: Fields) -> Task:
    """The task in a TASK frame."""
    name, array = fields
    return from_array(_TASKS[name], array)


def result_fields(result: Result) -> Fields:
    """A result as the fields of a RESULT frame."""
    return [type(result).__name__, to_array(result)]


def read_result(fields: Fields) -> Result:
    """The result in a RESULT frame."""
    name, array = fields
    return from_array(_RESULTS[name], array)


def failure_fields(failure: Failure) -> Fields:
    """A failure as fields."""
    return to_array(failure)


def read_failure(fields: Fields) -> Failure:
    """The failure in fields."""
    return from_array(Failure, fields)
