"""A worker: reads tasks from its line, makes batches into arenas, answers; ends with its line."""

from __future__ import annotations

import mmap
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loaderd_protocol import arena
from loaderd_server.batching import iterables
from loaderd_server.batching.imports import load
from loaderd_server.batching.maker import Maker
from loaderd_server.batching.placing import Bytes
from loaderd_server.core.tasks import OrderDone, Place, Result
from loaderd_server.workers import process_setup
from loaderd_server.workers.frames import Fields, Kind, pack, read_task, result_fields
from loaderd_server.workers.line import BlockingLine
from loaderd_server.workers.plan import DatasetPlan
from loaderd_server.workers.plan_codec import decode_plan
from loaderd_server.workers.progress import ProgressPage

#: How often a worker looks at its own memory; a look takes 30 us.
_RSS_EVERY_S = 0.1


@dataclass(eq=False)
class Worker:
    """One worker, from after its fork to its end."""

    number: int
    plan: DatasetPlan
    line: BlockingLine
    page: ProgressPage

    def __post_init__(self) -> None:
        self._arenas: dict[int, mmap.mmap] = {}
        self._maker: Maker | None = None
        self._rss_at_start = self._rss = 0
        self._rss_at = 0.0

    def run(self, dataset: Callable[[], Any]) -> None:
        """Works until the line ends or STOP comes. ``dataset``: gives the built dataset."""
        process_setup.name(f"worker {self.number} {self.plan.name}")
        notes = process_setup.settle(
            self.number, self.plan.process.affinity, self.plan.process.niceness
        )
        if self.plan.process.worker_init is not None:
            load(self.plan.process.worker_init)(self.number)
        where = f"worker {self.number}, pid {os.getpid()}"
        self._maker = Maker(self.plan, dataset(), where, self.page.at, self._place)
        self._rss_at_start = process_setup.rss_anon_bytes()
        self.page.clear()
        self.line.send(pack(Kind.HELLO, os.getpid(), notes))
        while (frame := self.line.receive()) is not None:
            kind, fields = frame
            if kind is Kind.STOP:
                return
            if kind is not Kind.TASK:
                self._learn(kind, fields)
                continue
            assert self._maker is not None
            result = self._maker.do(read_task(fields))
            process_setup.flush_output()
            self.page.clear()
            if not self._answer(result):
                return

    def _learn(self, kind: Kind, fields: Fields) -> None:
        """What changes for the tasks that follow."""
        match kind:
            case Kind.ARENA:
                self._add_arena(*fields)
            case Kind.ARENA_GONE:
                self._arenas.pop(fields[0], None)  # unmapped with its last array
            case Kind.NEW_PLAN:
                assert self._maker is not None
                self.plan = decode_plan(fields[0])
                self._maker.change_plan(self.plan)

    def _answer(self, result: Result) -> bool:
        if not isinstance(result, OrderDone):
            return self.line.send(pack(Kind.RESULT, *result_fields(result), self._rss_growth()))
        parts = [result.indices, result.occurrences, result.cuts]
        descriptor = os.memfd_create("loaderd-order", os.MFD_CLOEXEC)
        lengths = []
        with open(descriptor, "wb") as file:
            for part in parts:
                lengths.append(-1 if part is None else len(part))
                if part is not None:
                    file.write(np.ascontiguousarray(part, dtype=np.int64).tobytes())
            file.flush()
            frame = pack(Kind.ORDER, result.task, lengths, self._rss_growth())
            return self.line.send(frame, [file.fileno()])

    def _add_arena(self, number: int, size_bytes: int) -> None:
        descriptor = self.line.descriptors.popleft()
        self._arenas[number] = arena.map_shared(descriptor, size_bytes, writable=True)
        os.close(descriptor)

    def _place(self, place: Place) -> Bytes:
        return np.frombuffer(
            self._arenas[place.arena], np.uint8, place.capacity_bytes, place.offset
        )

    def _rss_growth(self) -> int:
        now = time.monotonic()
        if now - self._rss_at >= _RSS_EVERY_S:
            self._rss_at, self._rss = now, process_setup.rss_anon_bytes()
        return max(0, self._rss - self._rss_at_start)


def build_dataset(plan: DatasetPlan) -> Any:
    """Imports and builds the dataset; torch keeps to one thread from here on."""
    import torch

    torch.set_num_threads(1)
    sys.path[:0] = plan.python_path
    return iterables.build(load(plan.dataset.target), plan.dataset.args)
