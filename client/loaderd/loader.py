"""The loader: what a training script iterates. Each ``iter()`` is one epoch of one stream."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, Self

from loaderd import forking, ranks
from loaderd.batch import build
from loaderd.connection import Connection
from loaderd.failures import exception_of
from loaderd.stats import LoaderStats, Meter
from loaderd.subscription import Subscription
from loaderd_protocol.address import Address, resolve
from loaderd_protocol.errors import LoaderClosed, ProtocolError
from loaderd_protocol.messages import (
    Announce,
    BatchEmpty,
    BatchFailed,
    EpochStarted,
    FailedSample,
    Subscribe,
    Subscribed,
)

Output = Literal["torch", "numpy"]
#: How many failed samples ``Loader.failures`` remembers.
_MOST_FAILURES = 1000


def connect(
    stream: str,
    *,
    address: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    prefetch: int = 2,
    timeout_s: float | None = None,
    output: Output = "torch",
    copy: bool = False,
) -> Loader:
    """Attaches to a running daemon and subscribes to a stream.

    ``address``: the daemon's run directory; default ``$LOADERD_ADDRESS``, else the daemon's own
    default. ``rank``, ``world_size``: default from torch.distributed, else torchrun's environment;
    they count in streams of mode ``shard``. ``prefetch``: batches made ahead of the one in use.
    ``timeout_s``: longest wait for a batch, None for ever (a stopped daemon is still told of in the
    log). ``output``: tensors or numpy arrays. ``copy``: batches on the heap instead of views.

    Raises: DaemonNotRunning, VersionMismatch, UnknownStream, SubscriptionRefused, StreamEnded,
    DaemonTimeout, ValueError.
    """
    if output not in ("torch", "numpy"):
        raise ValueError(f"output is {output!r}; it is 'torch' or 'numpy'")
    if prefetch < 0:
        raise ValueError(f"prefetch is {prefetch}; it is 0 or more batches")
    chosen_rank, chosen_world = ranks.resolve(rank, world_size)
    request = Subscribe(0, stream, chosen_rank, chosen_world, prefetch, 0)
    return Loader(resolve(address), request, timeout_s, output, copy)


class Loader:
    """A stream as this trainer sees it. Made by :func:`connect`.

    Iterating gives one epoch: epoch 0 first, then the next by itself, or as ``set_epoch`` says.
    Iterators are independent of each other. An error of one batch is raised by ``next``; the
    iteration can go on behind it.
    """

    def __init__(
        self,
        address: Address,
        request: Subscribe,
        timeout_s: float | None,
        output: Output,
        copy: bool,
    ) -> None:
        self._address, self._request, self._timeout_s = address, request, timeout_s
        self._output, self._copy = output, copy
        self._meter = Meter()
        self._next_epoch = 0
        self._closed = False
        #: Samples that ``on_error: skip | substitute`` left out of this trainer's batches.
        self.failures: deque[FailedSample] = deque(maxlen=_MOST_FAILURES)
        self._attach()
        forking.register(self)

    def _attach(self) -> None:
        self._pid = os.getpid()
        self._numbers = itertools.count()
        self._idle: list[Subscription] = []
        self._connection = Connection(self._address, self._timeout_s)
        self._finalizer = weakref.finalize(self, self._connection.close)
        try:
            subscription, described = self._subscribe()
        except BaseException:
            self._finalizer()
            raise
        self._batches = described.batches
        self._idle.append(subscription)

    def _subscribe(self) -> tuple[Subscription, Subscribed]:
        number = next(self._numbers)
        request = Subscribe(
            number, self._request.stream, self._request.rank, self._request.world_size,
            self._request.prefetch, self._next_epoch,
        )  # fmt: skip
        subscription = Subscription(self._connection, number, request)
        return subscription, subscription.opened()

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._request.stream

    def __len__(self) -> int:
        """Batches of an epoch (of the last one started)."""
        return self._batches

    def __iter__(self) -> EpochIterator:
        """Starts the next epoch."""
        epoch = self._next_epoch
        self._next_epoch = epoch + 1
        return EpochIterator(self, epoch)

    def set_epoch(self, epoch: int) -> None:
        """The next ``iter()`` is this epoch, and those after it count on from there."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; it is 0 or more")
        self._next_epoch = epoch

    def stats(self) -> LoaderStats:
        """Batches, bytes, and the time waited for data since ``connect``."""
        return self._meter.read()

    def close(self) -> None:
        """Ends the subscription. Batches in hand stay valid; may be called again."""
        if self._closed:
            return
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # --- for its iterators and the fork hooks -----------------------------------------------

    def lend(self) -> Subscription:
        """A subscription for an iterator to use."""
        self.ensure_attached()
        try:
            return self._idle.pop()
        except IndexError:  # asked first, another thread could take it between question and pop
            return self._subscribe()[0]

    def take_back(self, subscription: Subscription) -> None:
        """An iterator needs its subscription no more."""
        if subscription.connection is self._connection and not self._closed:
            self._idle.append(subscription)

    def ensure_attached(self) -> None:
        """In a forked child, attaches anew.

        Raises: LoaderClosed.
        """
        if self._closed:
            raise LoaderClosed(f"the loader of stream {self.stream!r} is closed; connect again")
        if self._pid != os.getpid():
            self._attach()

    def holds_views(self) -> bool:
        """Whether a forked child would inherit views."""
        return bool(self._connection.lease.out)

    def after_fork_in_child(self) -> None:
        """Views become the child's own, the parent's line is let go of."""
        self._connection.lease.make_own()
        self._finalizer.detach()
        self._connection.abandon()


class EpochIterator(Iterator[Any]):
    """One pass over one epoch."""

    def __init__(self, loader: Loader, epoch: int) -> None:
        self._loader = loader
        self._epoch = epoch
        self._position = 0
        self._batches: int | None = None
        self._done = False
        self._begin()

    def _begin(self) -> None:
        self._subscription = self._loader.lend()
        self._pid = os.getpid()
        self._subscription.start(self._epoch, self._position)
        self._finalizer = weakref.finalize(self, self._loader.take_back, self._subscription)
        self._finalizer.atexit = False

    def __next__(self) -> Any:
        """The next batch.

        Raises: StopIteration at the epoch's end; a failed batch's exception (the next call goes on
        behind it); DaemonLost, DaemonTimeout, LoaderClosed.
        """
        if self._done:
            raise StopIteration
        if self._pid != os.getpid():
            self._finalizer.detach()
            self._begin()
        began = time.perf_counter()
        while True:
            if self._batches is not None and self._position >= self._batches:
                self._finish()
                raise StopIteration
            arrival = self._subscription.next(
                f"batch {self._position} of epoch {self._epoch} of stream {self._loader.stream!r}"
            )
            if isinstance(arrival, EpochStarted):
                self._batches = self._loader._batches = arrival.batches
                continue
            if arrival.batch != self._position:
                raise ProtocolError(f"batch {arrival.batch} came, not {self._position}")
            self._position += 1
            if isinstance(arrival, Announce):
                return self._deliver(arrival, began)
            self._subscription.give_back(arrival)
            if isinstance(arrival, BatchFailed):
                self._loader._meter.failed_batches += 1
                raise exception_of(arrival.failure, self._epoch, arrival.batch)
            self._pass_over(arrival)

    def _deliver(self, announce: Announce, began: float) -> Any:
        loader = self._loader
        base, copied = self._subscription.bytes_of(announce, loader._copy)
        batch = build(base, announce, loader._output)
        meter = loader._meter
        meter.copies += copied
        self._report(announce.failed)
        meter.delivered(began, time.perf_counter(), announce.rows, announce.size_bytes)
        return batch

    def _pass_over(self, empty: BatchEmpty) -> None:
        self._loader._meter.empty_batches += 1
        self._report(empty.failed)

    def _report(self, failed: tuple[FailedSample, ...]) -> None:
        if failed:
            self._loader._meter.failed_samples += len(failed)
            self._loader.failures.extend(failed)

    def _finish(self) -> None:
        self._done = True
        self._finalizer()
