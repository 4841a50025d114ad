"""A batch of an iterable dataset on its way: given to the worker that has the iterator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loaderd_server.core.batchjob import BatchJob
from loaderd_server.core.endless import Producer
from loaderd_server.core.failures import deadly_iterator
from loaderd_server.core.jobs import WorkerLoss
from loaderd_server.core.sequences import Epoch
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTask,
    IterateTask,
    IteratorOver,
    ProbeTask,
    Result,
)

if TYPE_CHECKING:
    from loaderd_server.core.making import Maker

#: What ends its worker so often is not tried again: nothing tells which sample it is.
_MOST_DEATHS = 3


class UnitJob(BatchJob):
    """As BatchJob, but that its samples are whatever the iterator gives next."""

    __slots__ = ("_producer", "_shard", "_unit")

    def __init__(
        self, maker: Maker, stream: Stream, epoch: Epoch, batch: int, producer: Producer
    ) -> None:
        super().__init__(maker, stream, epoch, batch)
        self._producer = producer
        self._shard = producer.shard_of(batch)
        self._unit = producer.unit_of(batch)

    @property
    def is_wanted(self) -> bool:
        """See Job: not where its shard has ended before it."""
        return super().is_wanted and not self._producer.is_hole(self.batch)

    @property
    def only_worker(self) -> int | None:
        """See Job."""
        return self._shard.worker

    @property
    def is_unlimited(self) -> bool:
        """See Job: an iterator that must be gone through takes as long as it does, while trainers wait."""
        return self._shard.at not in (self._unit, self._unit + 1) and bool(self.epoch.cursors)

    def given_to(self, worker: int) -> None:
        """See Job."""
        if self._shard.worker != worker:
            self._shard.worker, self._shard.at = worker, self._shard.state_unit

    def task(self, number: int) -> BatchTask | ProbeTask | IterateTask:
        """The unit, with the nearest state that is known before it."""
        assert self.slot is not None
        settings, sequence, shard = self.stream.settings, self.epoch.sequence, self._shard
        has_state = bool(shard.state) and shard.state_unit <= self._unit
        return IterateTask(
            number,
            self.dataset,
            BatchAddress(self.stream.name, sequence.seed, self.epoch.number, self.batch, 0, 1),
            self._producer.number_of_shard(self.batch),
            len(self._producer.shards),
            self._unit,
            settings.batch_size or 1,
            settings.drop_last,
            self.slot.place,
            shard.state if has_state else b"",
            shard.state_unit if has_state else 0,
        )

    def answered(self, result: Result) -> None:
        """See Job."""
        self._shard.at = self._unit + 1
        if self.stream.phase is not Phase.CLOSED and isinstance(result, IteratorOver):
            self.maker.iterator_over(self, self._producer, result.units)
            return
        if isinstance(result, BatchDone):
            self._producer.made(self.batch, result.state)
        super().answered(result)

    def worker_lost(self, loss: WorkerLoss) -> None:
        """See Job."""
        self._shard.worker = None
        if self.stream.phase is Phase.CLOSED:
            self.maker.drop(self)
            return
        if loss.with_zygote and self.zygote_losses == 0:
            self.zygote_losses += 1
            self.maker.submit(self)
            return
        self.deaths += 1
        if loss.timed_out or self.deaths >= _MOST_DEATHS:
            # Another iterator would end its worker at the same place, before any later batch.
            self._producer.ended(self.batch, self._unit + 1)
            self.maker.fail(self, deadly_iterator(self.batch, self.deaths, loss))
        else:
            self.maker.submit(self)


def out_of_window(epoch: Epoch, batch: int, producer: Producer) -> str:
    """Why a trainer cannot be served from this batch of an iterable dataset on."""
    stream = epoch.sequence.stream
    kept = sorted(epoch.entries)
    first = kept[0] if kept else producer.next
    return (
        f"batch {batch} of epoch {epoch.number} of stream {stream.name!r} cannot be had any more: its "
        f"dataset is iterable, so that batches are made once, and other trainers are at batch {first} "
        f"and later. Connect with start='live', or wait for the next epoch; a larger "
        f"streams.{stream.name}.window keeps more of them"
    )
