"""One pass over one epoch: batches in their order, whatever becomes of the daemon meanwhile."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from loaderd.batch import build, open_slot
from loaderd.cutting import Cutter
from loaderd.failures import exception_of
from loaderd.place import Place, Progress
from loaderd.subscription import Subscription
from loaderd.views import Arrival
from loaderd_protocol.errors import (
    BatchError,
    DaemonLost,
    LoaderClosed,
    ProtocolError,
    StateMismatch,
)
from loaderd_protocol.messages import (
    Announce,
    BatchEmpty,
    BatchFailed,
    EpochEnded,
    EpochStarted,
    FailedSample,
    ShardState,
)

if TYPE_CHECKING:
    from loaderd.loader import Loader


class EpochIterator(Iterator[Any]):
    """One pass over one epoch, from a place in it."""

    def __init__(self, loader: Loader, place: Place) -> None:
        self._loader = loader
        self._progress = Progress(place)
        self._is_queue = loader.described.mode == "queue"
        #: Whether places are counted in samples: not where nobody knows how many are in a batch.
        self._counts_samples = bool(
            loader.described.batch_size and not loader.described.shards and not self._is_queue
        )
        #: Batches are announced in order: the next one, and the one behind the last.
        self._expected = 0
        self._end: int | None = None
        #: Samples of the epoch for this rank; -1 while, or where, nobody knows.
        self._positions = -1
        self._cutter: Cutter | None = None
        self._begin()
        loader.began(self._progress)

    # --- the daemon's side ------------------------------------------------------------------

    def _begin(self) -> None:
        """Starts at the place as of what was given out; with another daemon, if there is one."""
        loader = self._loader
        self._pid = os.getpid()
        while True:
            connection = loader.connection
            place = self._progress.place()
            try:
                self._start(place, self._is_within_batch(place))
            except (DaemonLost, LoaderClosed) as error:  # closed: by another thread that came back
                loader.come_back(connection, error)
            else:
                return

    def _start(self, place: Place, within_batch: bool) -> None:
        self._cutter, self._end = None, None
        self._expected = self._slot_of(place)
        self._subscription = self._loader.lend(within_batch=within_batch)
        self._progress.given = 0
        self._progress.iteration = self._subscription.start(place, self._expected)
        self._finalizer = weakref.finalize(
            self, _let_go, self._loader, self._subscription, self._progress, within_batch
        )
        self._finalizer.atexit = False

    def _slot_of(self, place: Place) -> int:
        """The stream's batch in which a place lies."""
        if self._is_queue:
            return 0
        if not self._counts_samples:
            return place.batches
        return place.samples // self._loader.described.batch_size

    def _is_within_batch(self, place: Place) -> bool:
        size = self._loader.cut_size or self._loader.described.batch_size
        return self._counts_samples and place.samples % size != 0

    def _receive(self) -> Arrival | EpochStarted | EpochEnded | None:
        """What comes next; None where another daemon had to be found first."""
        subscription = self._subscription
        try:
            return subscription.next(
                f"batch {self._expected} of epoch {self._progress.epoch} of stream "
                f"{self._loader.stream!r}"
            )
        except (DaemonLost, LoaderClosed) as error:
            self._loader.come_back(subscription.connection, error)
        self._finalizer.detach()
        self._begin()
        return None

    def _started(self, told: EpochStarted) -> None:
        progress, described = self._progress, self._loader.described
        made, size = described.batch_size, self._loader.cut_size
        self._end = None if told.batches < 0 else told.batches
        self._positions = told.positions
        if progress.is_to_be_found:
            self._expected = told.batch
            samples = told.batch * made
            if size:  # all who cut to one size cut at the same places
                samples = -(-samples // size) * size
            progress.found(told.epoch, samples, samples // size if size else told.batch)
            self._loader.joined(told.epoch)
        if not self._counts_samples:
            self._loader.epoch_has(described.batches if self._is_queue else told.batches)
            return
        if progress.samples >= told.positions + (size or made):
            raise StateMismatch(
                f"cannot go on behind sample {progress.samples} of epoch {told.epoch} of stream "
                f"{self._loader.stream!r}: it has {told.positions} for this trainer"
            )
        if size or (progress.samples % made and progress.samples < told.positions):
            self._cut(size or made, told)
        elif progress.samples >= told.positions:
            self._end = self._expected  # all was given, the short last batch too

    def _cut(self, size: int, told: EpochStarted) -> None:
        """This trainer's batches are not the stream's."""
        progress, described = self._progress, self._loader.described
        if described.uncuttable:
            raise StateMismatch(
                f"sample {progress.samples} of the epoch is within a batch of stream "
                f"{self._loader.stream!r} (batch_size {described.batch_size}), which cannot be cut: "
                f"{described.uncuttable}. Resume with the batch size that the state was made with"
            )
        progress.batches = progress.samples // size
        self._cutter = Cutter(
            size, described.batch_size, told.positions, progress.samples,
            drop_last=described.drop_last,
        )  # fmt: skip

    # --- the trainer's side -----------------------------------------------------------------

    def __next__(self) -> Any:
        """The next batch.

        Raises: StopIteration at the epoch's end; a failed batch's exception (the next call goes on
        behind it); DaemonLost, DaemonTimeout, LoaderClosed.
        """
        if self._progress.is_finished:
            raise StopIteration
        if self._pid != os.getpid():
            self._finalizer.detach()
            self._begin()
        if self._is_queue and self._progress.given:
            self._subscription.done(self._progress.given)
        began = time.perf_counter()
        while not self._is_at_end():
            if self._cutter is not None and self._cutter.is_complete:
                batch, rows = self._take(self._cutter)
                if rows:
                    self._loader.meter.delivered(began, time.perf_counter(), rows)
                    return batch
                continue
            arrival = self._receive()
            if isinstance(arrival, EpochStarted):
                self._started(arrival)
            elif isinstance(arrival, EpochEnded):
                self._end = self._expected
            elif arrival is not None:
                batch, is_one = self._take_in(arrival)
                if is_one:
                    self._loader.meter.delivered(began, time.perf_counter(), arrival.rows)  # type: ignore[union-attr]
                    return batch
        self._finish()
        raise StopIteration

    def _is_at_end(self) -> bool:
        if self._cutter is not None:
            return self._cutter.is_at_end
        return self._end is not None and (self._is_queue or self._expected >= self._end)

    def _take_in(self, arrival: Arrival) -> tuple[Any, bool]:
        """Passes on what came; whether it is a batch to give out as it is.

        Raises: the exception of a batch that failed.
        """
        is_next = arrival.batch == self._expected
        if not is_next and not self._is_queue and not self._loader.described.shards:
            raise ProtocolError(f"batch {arrival.batch} came, not {self._expected}")
        self._expected = arrival.batch + 1
        if isinstance(arrival, Announce):
            return self._open(arrival)
        self._subscription.give_back(arrival)
        if isinstance(arrival, BatchFailed):
            self._fail(arrival)
        else:
            self._pass_over(arrival)
        return None, False

    def _open(self, announce: Announce) -> tuple[Any, bool]:
        loader, cutter = self._loader, self._cutter
        base, copied = self._subscription.bytes_of(announce, loader.options.copy)
        loader.meter.came(announce, copied=copied)
        if cutter is not None:
            self._report(announce.failed)
            opened = open_slot(base, announce, loader.options.output)
            try:
                cutter.came(announce.batch, announce.rows, announce.failed, opened)
            except BatchError:
                self._skip(cutter, announce.batch)  # else the end would never be reached
                raise
            return None, False
        batch = build(base, announce, loader.options.output)
        self._given(announce, announce.rows + len(announce.failed))
        self._report(announce.failed)
        return batch, True

    def _take(self, cutter: Cutter) -> tuple[Any, int]:
        try:
            batch, rows = cutter.take()
        finally:  # one whose parts cannot be joined is behind the trainer too
            self._progress.samples = cutter.position
            self._progress.batches += 1
        if not rows:
            self._loader.meter.empty_batches += 1
        return batch, rows

    def _skip(self, cutter: Cutter, batch: int) -> None:
        """One of the stream's batches is of no use to those that lie in it."""
        self._progress.batches += cutter.skip(batch)
        self._progress.samples = cutter.position

    def _given(self, arrival: Arrival, rows: int) -> None:
        """One of the stream's batches was given out, failed, or was passed over."""
        progress, described = self._progress, self._loader.described
        if self._counts_samples:
            end = (arrival.batch + 1) * described.batch_size
            progress.samples = min(end, self._positions)  # the last batch is shorter
        else:
            progress.samples += rows
        progress.batches = progress.batches + 1 if self._is_queue else arrival.batch + 1
        if described.shards:
            self._note_shard(arrival)
        if self._is_queue:
            progress.given += 1
            progress.was_given(arrival.batch)
            self._subscription.gave(progress.given)

    def _note_shard(self, arrival: Arrival) -> None:
        """An iterable dataset's batches are numbered over its shards, and each tells its state."""
        progress, shards = self._progress, self._loader.described.shards
        if isinstance(arrival, Announce) and arrival.state:
            shard, unit = arrival.batch % shards, arrival.batch // shards + 1
            progress.states[shard] = ShardState(shard, unit, arrival.state)

    def _fail(self, arrival: BatchFailed) -> None:
        self._loader.meter.failed_batches += 1
        if self._cutter is not None:
            self._skip(self._cutter, arrival.batch)
        else:
            self._given(arrival, 0)
        raise exception_of(arrival.failure, self._progress.epoch, arrival.batch)

    def _pass_over(self, empty: BatchEmpty) -> None:
        self._report(empty.failed)
        if self._cutter is not None:
            self._cutter.came(empty.batch, 0, empty.failed, None)
            return
        self._loader.meter.empty_batches += 1
        self._given(empty, len(empty.failed))

    def _report(self, failed: tuple[FailedSample, ...]) -> None:
        if failed:
            self._loader.meter.failed_samples += len(failed)
            self._loader.failures.extend(failed)
            self._progress.report(failed)

    def _finish(self) -> None:
        self._progress.is_finished = True
        self._finalizer()


def _let_go(
    loader: Loader, subscription: Subscription, progress: Progress, within_batch: bool
) -> None:
    """An iterator is over, or was dropped: then what is on its way for it comes back."""
    if not progress.is_finished and subscription.iteration == progress.iteration:
        subscription.done(progress.given, leaves=True)
        subscription.discard()
    loader.take_back(subscription, within_batch=within_batch)
