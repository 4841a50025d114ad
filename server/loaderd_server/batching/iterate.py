"""The iterators of one stream in one worker, and the batches made of what they give.

A batch that an iterator gave cannot be loaded again, so the last one of each is kept: for a larger
place, and for whoever asks once more. What is further back is made by a new iterator.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from loaderd_server.batching.faults import failure_of
from loaderd_server.batching.fetch import NO_ROW, Progress
from loaderd_server.batching.keys import Keys
from loaderd_server.batching.placing import Bytes, Planned, TooLarge, write
from loaderd_server.batching.shard_iterator import Notes, Over, ShardIterator, Unit
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTooLarge,
    IterateTask,
    IteratorOver,
    MeasureIterateTask,
    Place,
    Result,
    RowFailure,
    TaskFailed,
)

#: Epochs (of any seed) whose iterators are kept: the trainers' window, and a little more.
KEPT_EPOCHS = 4
#: A user's exception can have a text of any length.
_LINE_LIMIT = 2_000

Epoch = dict[tuple[int, int, int, bool], ShardIterator]
#: ``transform(address, index, occurrence, sample)``, under the sample's keys.
TransformOne = Callable[[BatchAddress, int, int, Any], Any]
#: Collates the samples of these indices.
LayOut = Callable[[list[Any], BatchAddress, list[int]], Planned]


class StderrNotes:
    """Lines in the daemon's log, which is where a worker's stderr goes."""

    def __init__(self, stream: str, where: str) -> None:
        self._head = f"loaderd: stream {stream} ({where}): "
        self._subjects: set[str] = set()

    def say(self, text: str) -> None:
        """Writes a line."""
        line = " ".join(text.split())[:_LINE_LIMIT]
        with contextlib.suppress(Exception):  # a stderr that user code has closed or replaced
            sys.stderr.write(f"{self._head}{line}\n")

    def complain(self, subject: str, text: str) -> None:
        """Writes a line once for each subject: what a dataset does, it does at every batch."""
        if subject not in self._subjects:
            self._subjects.add(subject)
            self.say(text)


class Iterators:
    """Finds, builds and drops the iterators of one stream."""

    def __init__(
        self, dataset: Any, keys: Keys, where: str, progress: Progress, notes: Notes
    ) -> None:
        self._dataset = dataset
        self._keys = keys
        self._where = where
        self._progress = progress
        self._notes = notes
        #: By (seed, epoch), the one used last at the end.
        self._epochs: dict[tuple[int, int], Epoch] = {}

    def unit(self, task: IterateTask) -> Unit | Over:
        """The samples of a unit, or what was made of them if it is the one made last."""
        epoch = self._epoch(task.address)
        shard = (task.shard, task.shards, task.rows, task.drop_last)
        found = epoch.get(shard)
        if found is None or not found.can_give(task):
            if found is not None:
                found.close()
            found = epoch[shard] = ShardIterator(
                self._dataset, task, self._keys, self._where, self._progress, self._notes
            )
        return found.give(task)

    def close(self) -> None:
        """Drops every iterator."""
        while self._epochs:
            self._drop_oldest()

    def _epoch(self, address: BatchAddress) -> Epoch:
        key = (address.seed, address.epoch)
        found = self._epochs.pop(key, None)
        if found is None:
            found = {}
            if len(self._epochs) == KEPT_EPOCHS:
                self._drop_oldest()
        self._epochs[key] = found
        return found

    def _drop_oldest(self) -> None:
        for shard in self._epochs.pop(next(iter(self._epochs))).values():
            shard.close()


class UnitMaker:
    """Makes the batches of a stream whose dataset is iterable."""

    def __init__(
        self,
        iterators: Iterators,
        transform: TransformOne,
        lay_out: LayOut,
        where: str,
        progress: Progress,
    ) -> None:
        self._iterators = iterators
        self._transform = transform
        self._lay_out = lay_out
        self._where = where
        self._progress = progress

    def close(self) -> None:
        """No more batches of this stream are made here."""
        self._iterators.close()

    def make(self, task: IterateTask, place: Callable[[Place], Bytes]) -> Result:
        """Makes a batch in its place."""
        unit = self._iterators.unit(task)
        if isinstance(unit, Over):
            return IteratorOver(task.task, unit.units)
        made = self._made(unit, task.address)
        if isinstance(made, RowFailure):
            return TaskFailed(task.task, (made,))
        try:
            written = write(made.root, made.placement, place(task.place))
        except TooLarge as large:
            return BatchTooLarge(task.task, large.needed_bytes)
        except BaseException as error:  # noqa: BLE001 - a leaf that only shows here what it is
            return TaskFailed(task.task, (RowFailure(-1, failure_of(error, -1, self._where)),))
        return BatchDone(
            task.task, len(unit.indices), written.size_bytes, written.layout, written.tail_offset,
            written.tail_bytes, (), unit.load_s, unit.transform_s, unit.collate_s, unit.state,
        )  # fmt: skip

    def first(self, task: MeasureIterateTask) -> Planned | None:
        """A shard's first batch, not written; it stays the one made last. None if there is none."""
        unit = self._iterators.unit(_first_unit(task))
        made = None if isinstance(unit, Over) else self._made(unit, task.address)
        return made if isinstance(made, Planned) else None

    def _made(self, unit: Unit, address: BatchAddress) -> Planned | RowFailure:
        if unit.made is None:
            unit.made = self._make_once(unit, address)
            unit.samples = []
        return unit.made

    def _make_once(self, unit: Unit, address: BatchAddress) -> Planned | RowFailure:
        """A failure of a transform or collate is this unit's alone: its samples are drawn."""
        row = index = -1
        try:
            began = time.perf_counter()
            samples = []
            for row, index in enumerate(unit.indices):
                self._progress(row)
                samples.append(self._transform(address, index, 0, unit.samples[row]))
            row = index = -1
            self._progress(NO_ROW)
            between = time.perf_counter()
            planned = self._lay_out(samples, address, unit.indices)
        except BaseException as error:  # noqa: BLE001 - user code; SystemExit must not end us
            return RowFailure(row, failure_of(error, index, self._where))
        unit.transform_s = between - began
        unit.collate_s = time.perf_counter() - between
        return planned


def _first_unit(task: MeasureIterateTask) -> IterateTask:
    shard = (task.shard, task.shards, 0, task.rows, task.drop_last)
    return IterateTask(task.task, task.dataset, task.address, *shard, Place(0, 0, 0), b"", 0)
