"""One user's iterator in one worker: begun, restored, drawn from unit by unit, as torch's worker would.

It runs under its own ``get_worker_info()``, on its own copy of the dataset, and with the global
generators keyed anew at each unit: nothing else that the worker does in between is seen by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import GeneratorType
from typing import Any, Protocol

from torch.utils.data._utils import worker as torch_worker

from loaderd_protocol.errors import EncodingError
from loaderd_server.batching.faults import failure_of, text_of
from loaderd_server.batching.iterables import own_copy
from loaderd_server.batching.iterator_state import (
    Holder,
    IteratorState,
    decode_state,
    encode_state,
    holder_of,
)
from loaderd_server.batching.keys import Keys
from loaderd_server.batching.placing import Planned
from loaderd_server.core.tasks import IterateTask, RowFailure


class Notes(Protocol):
    """Where an iterator's news go: the log."""

    def say(self, text: str) -> None:
        """Says this."""

    def complain(self, subject: str, text: str) -> None:
        """Says this if nothing was said on the subject yet."""


@dataclass(slots=True)
class Unit:
    """The samples of one batch of a shard, and what was made of them: kept until the next one."""

    number: int
    #: Each sample's running number over all shards.
    indices: list[int] = field(default_factory=list)
    samples: list[Any] = field(default_factory=list)
    #: The dataset's state right after these samples; b"" where it has none.
    state: bytes = b""
    load_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    #: None until it is made. A failure is what the unit is from then on, too.
    made: Planned | RowFailure | None = None


@dataclass(frozen=True, slots=True)
class Over:
    """The shard has no such unit: it had ``units``."""

    units: int


class ShardIterator:
    """The iterator of one shard of one epoch."""

    def __init__(
        self,
        dataset: Any,
        task: IterateTask,
        keys: Keys,
        where: str,
        progress: Callable[[int], None],
        notes: Notes,
    ) -> None:
        self._source = dataset
        self._first = task
        self._keys = keys
        self._where = where
        self._progress = progress
        self._notes = notes
        self._seeds = not getattr(dataset, "uses_only_given_rng", False)
        self._own: Any = None
        self._iterator: Iterator[Any] | None = None
        #: The unit that comes next; once it is over, how many there were.
        self._position = 0
        self._is_over = False
        self._last: Unit | None = None
        #: The unit and the row that are being drawn.
        self._drawing: tuple[int, int] | None = None

    def can_give(self, task: IterateTask) -> bool:
        """Whether the unit is the one made last or ahead, and no state leads nearer to it."""
        if self._last is not None and self._last.number == task.unit:
            return True
        if task.unit < self._position:
            return False
        return self._is_over or not task.state or task.state_unit <= self._position

    def give(self, task: IterateTask) -> Unit | Over:
        """The unit; samples before it are drawn and thrown away, and the log says so."""
        if self._last is not None and self._last.number == task.unit:
            return self._last
        if self._is_over:
            return Over(self._position)
        self._last = None
        began = time.perf_counter()
        unit = Unit(task.unit)
        try:
            if self._iterator is None:
                self._begin(task)
            self._skip_to(task.unit)
            if not self._is_over:
                self._draw(unit)
        except BaseException as error:  # noqa: BLE001 - user code; SystemExit must not end us
            self._fail(unit, error)
        if self._is_over:
            self.close()
        if not unit.samples and unit.made is None:
            return Over(self._position)
        unit.load_s = time.perf_counter() - began
        self._last = unit
        return unit

    def close(self) -> None:
        """Ends the user's iterator; the unit made last can still be given."""
        self._is_over = True
        if isinstance(self._iterator, GeneratorType):
            try:
                with self._as_torch_worker():
                    self._iterator.close()
            except BaseException as error:  # noqa: BLE001 - a user's finally
                self._notes.complain(
                    "close",
                    f"closing its generator raised {type(error).__name__}: {text_of(error)}",
                )
        self._iterator = self._own = None

    def _fail(self, unit: Unit, error: BaseException) -> None:
        number, row = self._drawing or (unit.number, -1)
        index = -1 if self._drawing is None else self._index(number, row)
        row = row if number == unit.number else -1
        unit.samples, unit.indices = [], []
        unit.made = RowFailure(row, failure_of(error, index, self._where))
        self._position, self._is_over = unit.number + 1, True

    # --- the user's iterator ----------------------------------------------------------------

    def _begin(self, task: IterateTask) -> None:
        """Restores what brings us nearest to the unit, or begins at 0."""
        if task.state and task.state_unit <= task.unit:
            try:
                self._make(decode_state(task.state))
                self._position = task.state_unit
                self._notes.say(
                    f"{self._name()} resumes by its state_dict of batch {task.state_unit}"
                )
                return
            except Exception as error:  # noqa: BLE001 - a user's load_state_dict, or a foreign state
                self._notes.say(
                    f"{self._name()}: the state of batch {task.state_unit} could not be loaded "
                    f"({type(error).__name__}: {text_of(error)}): skips instead"
                )
        self._make(None)

    def _make(self, state: IteratorState | None) -> None:
        copied = own_copy(self._source)
        self._own = copied.dataset
        if copied.shared_why:
            self._notes.complain(
                "copy",
                f"the iterators of this dataset share what is within it, as it cannot be copied "
                f"({copied.shared_why}): open files and connections in __iter__, not in __init__",
            )
        with self._as_torch_worker():
            if self._seeds:
                self._keys.seed_iterator(self._first.address, self._first.shard)
            if hasattr(self._own, "set_epoch"):
                self._own.set_epoch(self._first.address.epoch)
            if state is not None and state.holder is Holder.DATASET:
                self._own.load_state_dict(state.state)
            iterator: Any = iter(self._own)
            self._iterator = iterator
            if state is not None and state.holder is Holder.ITERATOR:
                iterator.load_state_dict(state.state)
        if copied.shared_why and self._iterator is self._own:
            raise TypeError(
                f"the dataset is its own iterator and cannot be copied ({copied.shared_why}), so "
                f"epochs and shards would take samples from each other: give it an __iter__ that "
                f"makes a new iterator, or name a generator function as the target"
            )

    def _skip_to(self, unit: int) -> None:
        skipped = 0
        while self._position < unit and not self._is_over:
            thrown = Unit(self._position)
            self._draw(thrown, with_state=False)
            skipped += len(thrown.samples)
        if skipped:
            self._notes.say(f"{self._name()} resumes at batch {unit} by skipping {skipped} samples")

    def _draw(self, unit: Unit, with_state: bool = True) -> None:
        assert self._iterator is not None
        first = self._first
        with self._as_torch_worker():
            if self._seeds:
                self._keys.seed_unit(first.address, first.shard, unit.number)
            for row in range(first.rows):
                self._progress(row)
                self._drawing = unit.number, row
                try:
                    unit.samples.append(next(self._iterator))
                except StopIteration:
                    self._is_over = True
                    break
                unit.indices.append(self._index(unit.number, row))
            self._drawing = None
            if self._is_over and first.drop_last:
                unit.samples, unit.indices = [], []
            if unit.samples:
                self._position = unit.number + 1
                unit.state = self._state() if with_state else b""

    def _state(self) -> bytes:
        holder = holder_of(self._own, self._iterator)
        if holder is None:
            return b""
        stateful: Any = self._iterator if holder is Holder.ITERATOR else self._own
        try:
            return encode_state(IteratorState(holder, stateful.state_dict()))
        except EncodingError as error:
            why = f"cannot be kept ({error})"
        except Exception as error:  # noqa: BLE001 - user code
            why = f"raised {type(error).__name__} ({text_of(error)})"
        self._notes.complain("state", f"its state_dict() {why}: a resume skips instead")
        return b""

    @contextmanager
    def _as_torch_worker(self) -> Iterator[None]:
        before = torch_worker._worker_info
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=self._first.shard,
            num_workers=self._first.shards,
            seed=self._keys.iterator_seed(self._first.address, self._first.shard),
            dataset=self._own,
        )
        try:
            yield
        finally:
            torch_worker._worker_info = before

    def _index(self, unit: int, row: int) -> int:
        return (unit * self._first.rows + row) * self._first.shards + self._first.shard

    def _name(self) -> str:
        address = self._first.address
        return f"seed {address.seed}, epoch {address.epoch}, shard {self._first.shard}"
