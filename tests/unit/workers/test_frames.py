"""Tasks, results and plans come through the socket pair as they went in."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.settings import ErrorPolicy, Mode
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
    RowFailure,
    TaskFailed,
)
from loaderd_server.workers.frames import (
    FrameBuffer,
    Kind,
    pack,
    read_result,
    read_task,
    result_fields,
    task_fields,
)
from loaderd_server.workers.plan import (
    DatasetPlan,
    ProcessPlan,
    SamplerPlan,
    StreamPlan,
    Target,
)
from loaderd_server.workers.plan_codec import decode_plan, encode_plan
from loaderd_server.workers.process_setup import parse_cpu_list
from loaderd_server.workers.zygote_process import how_ended, how_exited

ADDRESS = BatchAddress("train", 7, 1, 2, 0, 1)
ROWS = np.array([3, 1, 2], dtype=np.int64)
FAILURE = RowFailure(1, Failure(ErrorCode.SAMPLE, 5, "m:E", "bad \ud800", "tb", "worker 1"))

TASKS = [
    OrderTask(1, "d", "train", 2**63, 5),
    OrderTask(1, "d", "train", 0, 5, inverts=True),
    MeasureTask(2, "d", ADDRESS, ROWS, None),
    BatchTask(3, "d", ADDRESS, ROWS, ROWS, Place(0, 4096, 8192)),
    BatchTask(3, "d", ADDRESS, ROWS[:0], None, Place(0, 4096, 8192)),
    ProbeTask(4, "d", ADDRESS, ROWS, ROWS),
    IterateTask(5, "d", ADDRESS, 1, 3, 2**40, 64, True, Place(0, 4096, 8192), b"\x00s", 7),
    MeasureIterateTask(6, "d", ADDRESS, 0, 3, 64, False),
    BatchTask(7, "d", ADDRESS, ROWS, None, Place(0, 0, 1), Cached(ROWS, None, ROWS[:0]), ROWS),
    BatchTask(7, "d", ADDRESS, ROWS, None, Place(0, 0, 1), Cached(ROWS[::-1], ROWS, ROWS[:2])),
    CheckTask(8, "d", ROWS),
    FillTask(9, "d", ROWS),
    FillTask(9, "d", ROWS, ROWS[:1]),
]
RESULTS = [
    MeasureDone(1, 5),
    BatchDone(2, 3, 100, b"layout", 64, 10, (FAILURE,), 0.5, 0.25, 0.0),
    BatchTooLarge(3, 1 << 40),
    BatchDone(2, 3, 100, b"layout", 64, 10, state=b"\x00state"),
    IteratorOver(4, 3),
    ProbeDone(4),
    TaskFailed(5, (FAILURE, FAILURE)),
    BatchDone(6, 3, 1, b"", 0, 0, hits=2, disk_hits=1, unread=(0, 2), offers=Offers(ROWS, ROWS)),
    CheckDone(7, "index 3 differs", 64, 0.5),
    FillDone(8, Offers(ROWS[:0], ROWS[:0]), 0.25),
]


def through(frame: bytes) -> tuple[Kind, list[Any]]:
    buffer = FrameBuffer()
    buffer.feed(frame)
    (got,) = buffer.frames()
    return got


def same(left: Any, right: Any) -> bool:
    if is_dataclass(left) and not isinstance(left, type):
        names = [field.name for field in fields(left)]
        return type(left) is type(right) and all(
            same(getattr(left, name), getattr(right, name)) for name in names
        )
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and np.array_equal(left, right)
    return bool(left == right)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_tasks_survive(task: Any) -> None:
    kind, got = through(pack(Kind.TASK, *task_fields(task)))
    assert kind is Kind.TASK
    assert same(read_task(got), task)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_results_survive(result: Any) -> None:
    _kind, got = through(pack(Kind.RESULT, *result_fields(result)))
    assert same(read_result(got), result)


@given(st.lists(st.integers(0, 200), max_size=20), st.data())
def test_frames_come_whole_however_the_bytes_are_cut(sizes: list[int], data: Any) -> None:
    stream = b"".join(pack(Kind.HELLO, "x" * size) for size in sizes)
    buffer, got = FrameBuffer(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        buffer.feed(stream[:cut])
        got += [len(content[0]) for _kind, content in buffer.frames()]
        stream = stream[cut:]
    assert got == sizes


def test_a_plan_survives() -> None:
    stream = StreamPlan(
        "train", Mode.SHARD, 3, None, True, SamplerPlan("batch_target", {"a": [1]}, "m:s"),
        (Target("resize", {"size": 3}),), Target("m:c"), ErrorPolicy.SKIP,
    )  # fmt: skip
    process = ProcessPlan("spawn", "numa", 5, "m:init")
    plan = DatasetPlan("d", Target("m:D", {"x": {"y": None}}), ("/a", "/b"), (stream,), process)
    assert decode_plan(encode_plan(plan)) == plan


def test_the_kernels_lists_of_cores_are_read() -> None:
    assert parse_cpu_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert parse_cpu_list("") == set()


def test_ends_are_told_in_words() -> None:
    assert how_exited(3) == "exited with code 3"
    assert how_exited(-9) == "was killed by signal 9 (SIGKILL)"
    assert how_ended(11) == "was killed by signal 11 (SIGSEGV)"
