"""Tasks, results and the zygote's messages as frames on a socket pair: u32 length, then msgpack.

Both ends are this package in one version, so frames are as plain as they can be: ``[kind, ...]``.
Descriptors ride on the frame that names them (SCM_RIGHTS).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import astuple, replace
from enum import IntEnum
from typing import Any

import msgpack
import numpy as np

from loaderd_protocol.errors import Failure
from loaderd_protocol.records import from_array, to_array
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTask,
    BatchTooLarge,
    Cached,
    CheckDone,
    CheckTask,
    FillDone,
    FillTask,
    Indices,
    IterateTask,
    IteratorOver,
    MeasureDone,
    MeasureIterateTask,
    MeasureTask,
    Offers,
    OrderTask,
    Place,
    ProbeDone,
    ProbeTask,
    Result,
    Task,
    TaskFailed,
)

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


def task_fields(task: Task) -> Fields:
    """A task as the fields of a TASK frame."""
    if isinstance(task, OrderTask):
        return ["order", *astuple(task)]
    if isinstance(task, IterateTask | MeasureIterateTask):
        return [type(task).__name__, *to_array(task)]
    if isinstance(task, CheckTask):
        return ["check", task.task, task.dataset, task.indices.tobytes()]
    if isinstance(task, FillTask):
        rows = [task.indices.tobytes(), _array_bytes(task.coming)]
        return ["fill", task.task, task.dataset, *rows]
    rows = [task.indices.tobytes(), _array_bytes(task.occurrences)]
    head = [task.task, task.dataset, to_array(task.address), *rows]
    match task:
        case BatchTask():
            cached = None if task.cached is None else _cached_fields(task.cached)
            return ["batch", *head, to_array(task.place), cached, _array_bytes(task.coming)]
        case MeasureTask():
            return ["measure", *head]
        case ProbeTask():
            return ["probe", *head]


def read_task(fields: Fields) -> Task:
    """The task in a TASK frame."""
    kind, *rest = fields
    if kind == "order":
        return OrderTask(*rest)
    if kind in _ITERATING:
        return from_array(_ITERATING[kind], rest)
    if kind == "check":
        return CheckTask(rest[0], rest[1], _indices(rest[2]))
    if kind == "fill":
        return FillTask(rest[0], rest[1], _indices(rest[2]), _indices_or_none(rest[3]))
    task, dataset, address, indices, occurrences, *more = rest
    where = from_array(BatchAddress, address)
    rows, counts = _indices(indices), _indices_or_none(occurrences)
    if kind == "batch":
        place, cached, coming = more
        return BatchTask(
            task,
            dataset,
            where,
            rows,
            counts,
            from_array(Place, place),
            None if cached is None else _read_cached(cached),
            _indices_or_none(coming),
        )
    chosen = MeasureTask if kind == "measure" else ProbeTask
    return chosen(task, dataset, where, rows, counts)


_ITERATING: dict[str, type[IterateTask | MeasureIterateTask]] = {
    task.__name__: task for task in (IterateTask, MeasureIterateTask)
}
#: Results that fit a frame; OrderDone's arrays travel as a descriptor (Kind.ORDER).
_RESULTS: dict[str, type[Result]] = {
    result.__name__: result
    for result in (
        MeasureDone,
        BatchDone,
        BatchTooLarge,
        ProbeDone,
        TaskFailed,
        IteratorOver,
        CheckDone,
    )
}


def result_fields(result: Result) -> Fields:
    """A result as the fields of a RESULT frame."""
    if isinstance(result, FillDone):
        return ["FillDone", [result.task, result.load_s], _offer_fields(result.offers)]
    if isinstance(result, BatchDone) and result.offers is not None:
        return ["BatchDone", to_array(replace(result, offers=None)), _offer_fields(result.offers)]
    return [type(result).__name__, to_array(result)]


def read_result(fields: Fields) -> Result:
    """The result in a RESULT frame."""
    name, array, *offers = fields
    if name == "FillDone":
        task, load_s = array
        return FillDone(task, _read_offers(offers[0]), load_s)
    result = from_array(_RESULTS[name], array)
    if isinstance(result, BatchDone) and offers:
        return replace(result, offers=_read_offers(offers[0]))
    return result


def failure_fields(failure: Failure) -> Fields:
    """A failure as fields."""
    return to_array(failure)


def read_failure(fields: Fields) -> Failure:
    """The failure in fields."""
    return from_array(Failure, fields)


def _array_bytes(array: Indices | None) -> bytes | None:
    return None if array is None else array.tobytes()


def _indices(data: bytes) -> Indices:
    return np.frombuffer(data, dtype=np.int64)


def _indices_or_none(data: bytes | None) -> Indices | None:
    return None if data is None else _indices(data)


def _cached_fields(cached: Cached) -> Fields:
    return [cached.memory.tobytes(), _array_bytes(cached.disk), cached.offer.tobytes()]


def _read_cached(fields: Fields) -> Cached:
    memory, disk, offer = fields
    return Cached(_indices(memory), _indices_or_none(disk), _indices(offer))


def _offer_fields(offers: Offers) -> Fields:
    return [offers.rows.tobytes(), offers.sizes.tobytes()]


def _read_offers(fields: Fields) -> Offers:
    return Offers(*map(_indices, fields))
