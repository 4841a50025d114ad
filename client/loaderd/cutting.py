"""A trainer's own batch size: ranges of positions, cut out of the slots they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from loaderd.batch import Recipe
from loaderd_protocol.errors import BatchError
from loaderd_protocol.messages import FailedSample

#: Some rows of a slot: the leaves of the whole, the first row and the one behind the last.
Piece = tuple[Recipe, list[Any], int, int]


class _Slot(NamedTuple):
    """A slot that came in and may have more in it."""

    first: int
    end: int
    #: The row of each position, and of the one behind the last.
    rows: list[int]
    #: None where every sample failed.
    recipe: Recipe | None
    leaves: list[Any]


class Cutter:
    """Cuts what comes in slots of ``made_size`` positions into batches of ``size`` positions.

    Batches are [begin + k * size, begin + (k + 1) * size). One that lies in one slot is a view of it;
    one that crosses slots is copied once.
    """

    def __init__(
        self, size: int, made_size: int, length: int, begin: int, *, drop_last: bool
    ) -> None:
        self._size = size
        self._made_size = made_size
        self._length = length
        rest = max(0, length - begin)
        #: The position behind the last batch.
        self.end = begin + (rest // size * size if drop_last else rest)
        #: The first position of the next batch.
        self.position = begin
        #: All before it is in the pieces, or was left out.
        self._covered = begin
        self._pieces: list[Piece] = []
        self._slot: _Slot | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether every batch was given."""
        return self.position >= self.end

    @property
    def is_complete(self) -> bool:
        """Whether all of the next batch has come in."""
        return not self.is_at_end and self._covered >= self._target

    @property
    def first_slot(self) -> int:
        """The stream's batch in which the next position lies."""
        return self.position // self._made_size

    def came(
        self,
        batch: int,
        rows: int,
        failed: Sequence[FailedSample],
        opened: tuple[Recipe, list[Any]] | None,
    ) -> None:
        """A slot came in; ``opened`` is None for one of which every sample failed.

        Raises: BatchError where it is no list of rows.
        """
        first, end = self._bounds(batch)
        recipe, leaves = opened or (None, [])
        self._slot = _Slot(first, end, _row_of(first, end, rows, failed), recipe, leaves)
        for leaf in leaves:
            _check_rows(leaf, rows, batch)
        self._use_slot()

    def skip(self, batch: int) -> int:
        """A slot could not be made: the batches that need it are passed over; how many."""
        skipped = 0
        self._pieces.clear()
        while self.position < self._bounds(batch)[1] and not self.is_at_end:
            self.position = self._target
            skipped += 1
        self._covered = self.position
        return skipped

    def take(self) -> tuple[Any, int]:
        """The next batch and its rows; 0 of them where every sample of it failed.

        Raises: BatchError where its parts cannot be joined; then it is passed over.
        """
        pieces, self._pieces = self._pieces, []
        self.position = self._target
        self._use_slot()
        rows = sum(stop - start for _, _, start, stop in pieces)
        return (_joined(pieces) if rows else None), rows

    @property
    def _target(self) -> int:
        return min(self.position + self._size, self.end)

    def _bounds(self, batch: int) -> tuple[int, int]:
        first = batch * self._made_size
        return first, min(first + self._made_size, self._length)

    def _use_slot(self) -> None:
        """Takes from the slot what belongs to the next batch; lets it go where no more is in it."""
        slot = self._slot
        if slot is None or self.is_at_end:
            self._slot = None
            return
        start, stop = max(self._covered, slot.first), min(self._target, slot.end)
        if stop > start:
            first, last = slot.rows[start - slot.first], slot.rows[stop - slot.first]
            if slot.recipe is not None and last > first:
                self._pieces.append((slot.recipe, slot.leaves, first, last))
            self._covered = stop
        if self._covered >= slot.end:
            self._slot = None


def _row_of(first: int, end: int, rows: int, failed: Sequence[FailedSample]) -> list[int]:
    """For each position of a slot, and the one behind it, its row: samples left out have none."""
    if rows == end - first or not failed:
        return list(range(end - first + 1))
    out = {sample.position for sample in failed}
    found = [0]
    for position in range(first, end):
        found.append(found[-1] + (position not in out))
    return found


def _check_rows(leaf: Any, rows: int, batch: int) -> None:
    has_rows = isinstance(leaf, torch.Tensor | np.ndarray | list | tuple)
    if not has_rows or len(leaf) != rows:
        raise BatchError(
            f"batch {batch} of {rows} rows cannot be cut: it has a {type(leaf).__name__} that has not "
            f"one entry a row. Leave batch_size out for this stream"
        )


def _joined(pieces: list[Piece]) -> Any:
    recipe = pieces[0][0]
    parts = [[leaf[start:stop] for leaf in leaves] for _, leaves, start, stop in pieces]
    if len(parts) == 1:
        return recipe.assemble(iter(parts[0]))
    for other, _, _, _ in pieces:
        if other.structure != recipe.structure:
            raise _unlike("structures", recipe.structure, other.structure)
    return recipe.assemble(iter([_join(column) for column in zip(*parts, strict=True)]))


def _unlike(what: str, first: object, second: object) -> BatchError:
    return BatchError(
        f"a batch lies in two slots whose {what} differ and cannot be joined: {first} and {second}. "
        f"Leave batch_size out for this stream"
    )


def _join(column: Sequence[Any]) -> Any:
    if isinstance(column[0], torch.Tensor | np.ndarray):
        for part in column:
            if part.shape[1:] != column[0].shape[1:]:
                raise _unlike("rows", tuple(column[0].shape[1:]), tuple(part.shape[1:]))
    if isinstance(column[0], torch.Tensor):
        return torch.cat(list(column))
    if isinstance(column[0], np.ndarray):
        return np.concatenate(column)
    # Strings of a tuple's or a record's field come as a tuple.
    return type(column[0])(item for part in column for item in part)
