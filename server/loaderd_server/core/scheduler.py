"""The scheduler: which batch is needed soonest, and which slot can be had for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from loaderd_server.core.jobs import Job
from loaderd_server.core.sequences import Cursor, Epoch
from loaderd_server.core.slots import Slot
from loaderd_server.core.streams import Stream
from loaderd_server.core.turn import Turn

if TYPE_CHECKING:
    from loaderd_server.core.making import Maker

#: What one batch in hand or ahead is worth, in tasks given to others. A cursor's next batch is due
#: at (when it was last served) + so many for each batch it still has: who has least goes first, and
#: as time passes everyone's turn comes, so nobody starves.
_BATCH_WORTH_TICKS = 4


class Scheduler:
    """Looks at what cursors want within their credits. A BatchSource for the dispatcher."""

    def __init__(self, streams: Iterable[Stream], maker: Maker, turn: Turn) -> None:
        self._by_dataset: dict[str, list[Stream]] = {}
        for stream in streams:
            self.add(stream)
        self._maker = maker
        self._turn = turn

    def add(self, stream: Stream) -> None:
        """Its cursors are looked at from now on."""
        self._by_dataset.setdefault(stream.settings.dataset, []).append(stream)

    def remove(self, stream: Stream) -> None:
        """Nothing is made for it any more."""
        self._by_dataset[stream.settings.dataset].remove(stream)

    def due(self, dataset: str) -> int | None:
        """When the most urgent wanted batch of a dataset is due, in ticks; None if none is wanted."""
        soonest = self._soonest(dataset)
        return None if soonest is None else soonest[0]

    def only(self, dataset: str) -> int | None:
        """See BatchSource: iterators of an iterable dataset live in one worker each."""
        soonest = self._soonest(dataset)
        if soonest is None or soonest[2].producer is None:
            return None
        return soonest[2].producer.shard_of(soonest[3]).worker

    def begin(self, dataset: str) -> Job | None:
        """The job that makes the most urgent batch, with its slot; None where no slot is to be had."""
        while (soonest := self._soonest(dataset)) is not None:
            _, cursor, epoch, batch = soonest
            stream = cursor.sequence.stream
            if epoch.producer or not self._maker.settle_empty(stream, epoch, batch):
                return self._begin(stream, epoch, batch)
        return None

    def _begin(self, stream: Stream, epoch: Epoch, batch: int) -> Job | None:
        slot = slot_for(stream, stream.overflow.expected_bytes(stream.pool.base_bytes))
        slot = slot or slot_for(stream, stream.pool.base_bytes)
        if slot is None:
            # A slot is being filled for somebody who has left: its worker's answer frees one.
            stream.is_blocked = True
            return None
        for other in epoch.cursors:
            if other.position <= batch or epoch.line is not None:
                other.served_tick = self._turn.tick
        return self._maker.begin(stream, epoch, batch, slot)

    def demand(self, dataset: str) -> int:
        """How many batches are wanted and not being made."""
        missing: dict[Epoch, set[int]] = {}
        queued = 0
        for cursor, epoch in self._hungry(dataset):
            if epoch.line is not None:
                queued += epoch not in missing and epoch.line.missing()
                missing.setdefault(epoch, set())
                continue
            if epoch.producer is not None:
                queued += max(0, cursor.reach(epoch) - epoch.producer.peek())
                continue
            wanted = range(cursor.scanned, cursor.reach(epoch))
            missing.setdefault(epoch, set()).update(b for b in wanted if b not in epoch.entries)
        return queued + sum(map(len, missing.values()))

    def give_up(self, dataset: str, text: str) -> None:
        """Fails the batch that each waiting cursor is at: the dataset's workers do not start."""
        failed: set[Epoch] = set()
        for cursor, epoch in tuple(self._hungry(dataset)):
            if cursor.epoch is not epoch or epoch in failed:
                continue
            if epoch.producer is not None:
                failed.add(epoch)
                self._maker.fail_next(epoch, epoch.producer, text)
                continue
            batch = cursor.position if epoch.line is None else epoch.line.next_missing()
            if batch is not None and batch < epoch.batches and batch not in epoch.entries:
                self._maker.fail_once(epoch, batch, text)

    def _hungry(self, dataset: str) -> Iterator[tuple[Cursor, Epoch]]:
        for stream in self._by_dataset.get(dataset, ()):
            for cursor in stream.cursors:
                if cursor.epoch is not None and cursor.outstanding < cursor.grant:
                    yield cursor, cursor.epoch

    def _soonest(self, dataset: str) -> tuple[int, Cursor, Epoch, int] | None:
        soonest: tuple[int, Cursor, Epoch, int] | None = None
        for cursor, epoch in self._hungry(dataset):
            batch = cursor.next_missing()
            if batch is None or cursor.sequence.stream.is_blocked:
                continue
            ahead = cursor.outstanding + (batch - cursor.position if epoch.is_ordered else 0)
            due = cursor.served_tick + _BATCH_WORTH_TICKS * ahead
            if soonest is None or due < soonest[0]:
                soonest = (due, cursor, epoch, batch)
        return soonest


def slot_for(stream: Stream, needed_bytes: int, urgent_in: int | None = None) -> Slot | None:
    """A free slot for a batch of this size, evicting one if need be; None where all are in use.

    Common batches use common slots only. What a cursor has a credit for is never evicted, except
    for a batch that is needed sooner: in ``urgent_in`` batches (see Epoch.distance).
    """
    pool = stream.pool
    if needed_bytes <= pool.base_bytes:
        return pool.free_slot(pool.base_bytes) or _evict(stream, pool.base_bytes, urgent_in)
    fitting = [size for size in pool.large_sizes if size >= needed_bytes]
    for size in fitting:
        if slot := pool.free_slot(size):
            return slot
    for size in fitting:
        if slot := _evict(stream, size, urgent_in):
            return slot
    return None


def _evict(stream: Stream, slot_bytes: int, urgent_in: int | None) -> Slot | None:
    """Frees the slot whose next use is farthest; the longest unused of those nobody comes to."""
    victim: Slot | None = None
    farthest = -1
    places: dict[Epoch, list[int]] = {}
    for slot in stream.pool.idle.values():
        epoch = slot.epoch
        if slot.place.capacity_bytes != slot_bytes or epoch is None:
            continue
        distance = _next_use(slot, epoch, places)
        if distance is None:  # nobody comes to it any more
            victim = slot
            break
        if distance <= farthest or epoch.producer is not None:
            continue
        if (urgent_in is not None and distance > urgent_in) or not epoch.is_wanted(slot.batch):
            victim, farthest = slot, distance
    if victim is not None and victim.epoch is not None:
        victim.epoch.forget(victim.batch)
        stream.pool.free(victim)
    return victim


def _next_use(slot: Slot, epoch: Epoch, places: dict[Epoch, list[int]]) -> int | None:
    """As ``Epoch.distance``, for many slots; ``places`` keeps where the cursors of an epoch are."""
    if epoch.line is not None:
        return epoch.line.distance(slot.batch)
    if epoch not in places:
        places[epoch] = epoch.places()
    before = bisect_right(places[epoch], slot.batch)
    return None if before == 0 else slot.batch - places[epoch][before - 1]
