"""When a sample is used next: looked up in the orders that running trainers read, never guessed.

A reader is a place in an order that is being read, or will be next. Distances count samples that the
reader loads before it comes to the one in question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from loaderd_server.core.orders import Inverse, RankOrder
from loaderd_server.core.sequences import Cursor, CursorState, Epoch
from loaderd_server.core.streams import Stream
from loaderd_server.core.tasks import Indices

#: No reader comes to it, as far as orders are known.
FAR = 2**62


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the rank's share of an order from its ``start``-th sample on, ``ahead`` samples from now."""

    inverse: Inverse
    rank: int
    world_size: int
    start: int
    ahead: int

    def distances(self, samples: Indices) -> Indices:
        """How many samples it loads before each of these; FAR or more where it does not come to it."""
        size = self.world_size
        found = self.inverse.positions(samples, self.start * size)
        is_mine = found >= self.start * size
        if size > 1:
            is_mine &= found % size == self.rank
            found //= size
        found += self.ahead - self.start
        found[~is_mine] = FAR
        return found


def distances(samples: Indices, readers: Iterable[Reader]) -> Indices:
    """How far from now each sample is used next; FAR where no reader comes to it."""
    least = np.full(len(samples), FAR, np.int64)
    for reader in readers:
        np.minimum(least, reader.distances(samples), out=least)
    return least


def readers_of(streams: Iterable[Stream]) -> list[Reader]:
    """Where the trainers of these streams load from now, each place once."""
    places: dict[tuple[int, int, int], Reader] = {}
    for stream in streams:
        if stream.is_open and not stream.is_iterable:
            for cursor in stream.cursors:
                for reader in _of_cursor(stream, cursor):
                    key = (id(reader.inverse.of), reader.rank, reader.start - reader.ahead)
                    places[key] = reader
    return list(places.values())


def _of_cursor(stream: Stream, cursor: Cursor) -> Iterable[Reader]:
    epoch, sequence = cursor.epoch, cursor.sequence
    if epoch is None:
        number = cursor.awaits if cursor.awaits is not None else cursor.asked_epoch
        is_between = cursor.awaits is None and cursor.iteration >= 0
        if cursor.state is not CursorState.ENDED:
            yield from _of_order(cursor, number + is_between, 0)
        return
    view = epoch.view
    if not isinstance(view, RankOrder):
        return
    start = _front(cursor, epoch, view)
    if view.inverse is not None:
        yield Reader(view.inverse, sequence.rank, sequence.world_size, start, 0)
    if not epoch.dealt:
        yield from _of_order(cursor, epoch.number + 1, view.length - start)


def _of_order(cursor: Cursor, number: int, ahead: int) -> Iterable[Reader]:
    sequence = cursor.sequence
    order = sequence.stream.orders.ready.get((sequence.seed, number))
    if order is None or order.inverse is None:
        return
    if order.cuts is None or sequence.world_size == 1:
        yield Reader(order.inverse, sequence.rank, sequence.world_size, 0, ahead)


def _front(cursor: Cursor, epoch: Epoch, view: RankOrder) -> int:
    """The position from which on it has still to have samples loaded."""
    if epoch.line is not None:
        batch = epoch.line.front()
    else:
        batch = max(cursor.scanned, cursor.position)
        while batch in epoch.entries:
            batch += 1
    return view.positions(batch).start if batch < view.batches else view.length
