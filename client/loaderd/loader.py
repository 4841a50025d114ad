"""The loader: what a training script iterates. Each ``iter()`` is one epoch of one stream."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from loaderd import arguments, forking, ranks, resume
from loaderd.connection import Connection
from loaderd.iterating import EpochIterator
from loaderd.place import Begin, Place, Progress, first_place
from loaderd.stats import LoaderStats, Meter
from loaderd.subscription import Subscription
from loaderd_protocol.address import Address, resolve
from loaderd_protocol.errors import (
    DaemonLost,
    DaemonNotRunning,
    DaemonTimeout,
    LoaderClosed,
    LoaderdError,
    StateMismatch,
)
from loaderd_protocol.messages import FailedSample, Subscribe, Subscribed

log = logging.getLogger("loaderd")

Output = Literal["torch", "numpy"]
#: How many failed samples ``Loader.failures`` remembers.
_MOST_FAILURES = 1000
#: How often a trainer looks for a daemon that is to come back.
_LOOK_S = 0.02


_ITERABLE = (
    "stream %r is of an iterable dataset: batches are made once and kept for its window alone. No other "
    "batch size, no joining at an earlier batch while others read; trainers wait for each other "
    "(window, patience_s); resuming is by the dataset's own state_dict, or by skipping"
)


def connect(
    stream: str,
    *,
    address: str | os.PathLike[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    seed: int | None = None,
    batch_size: int | None = None,
    drop_last: bool | None = None,
    start: Begin | None = None,
    prefetch: int = 2,
    timeout_s: float | None = None,
    reconnect_s: float = 0.0,
    output: Output = "torch",
    copy: bool = False,
) -> Loader:
    """Attaches to a running daemon and subscribes to a stream.

    ``address``: the daemon's run directory; default ``$LOADERD_ADDRESS``, else the daemon's own
    default. ``rank``, ``world_size``: default from torch.distributed, else torchrun's environment;
    they count in streams of mode ``shard``. ``seed``: of an order of this trainer's own, in streams of
    mode ``independent``. ``batch_size``, ``drop_last``: of this trainer, default the stream's; batches
    are cut from those that others share. ``start``: "begin" (the default: epoch 0), "live" (where the
    foremost trainer is; a queue's default), or (epoch, batch). ``prefetch``: batches made ahead of
    the one in use. ``timeout_s``: longest wait for a batch, None for ever (a stopped daemon is still
    told of in the log). ``reconnect_s``: how long to wait for another daemon when this one ends; the
    loader goes on with the very next batch. ``output``: tensors or numpy arrays. ``copy``: batches on
    the heap instead of views.

    Raises: DaemonNotRunning, VersionMismatch, UnknownStream, SubscriptionRefused, StreamEnded,
    DaemonTimeout, ValueError, TypeError.
    """
    if not isinstance(stream, str):
        raise TypeError(f"stream is {stream!r}; it is the name of one")
    if output not in ("torch", "numpy"):
        raise ValueError(f"output is {output!r}; it is 'torch' or 'numpy'")
    if start not in (None, "begin", "live"):
        arguments.start(start)
    reconnect_s = arguments.seconds("reconnect_s", reconnect_s)
    if timeout_s is not None:
        timeout_s = arguments.seconds("timeout_s", timeout_s)
    chosen_rank, chosen_world = ranks.resolve(rank, world_size)
    request = Subscribe(
        0, stream, chosen_rank, chosen_world, arguments.whole("prefetch", prefetch), 0,
        seed=arguments.whole_or("seed", seed, -1),
        batch_size=arguments.whole_or("batch_size", batch_size, 0, least=1),
        drop_last=arguments.flag_or("drop_last", drop_last, -1),
    )  # fmt: skip
    options = Options(timeout_s, reconnect_s, output, copy, start)
    return Loader(resolve(address), request, options)


@dataclass(frozen=True, slots=True)
class Options:
    """What ``connect`` was told that concerns this side alone."""

    timeout_s: float | None = None
    reconnect_s: float = 0.0
    output: Output = "torch"
    copy: bool = False
    start: Begin | None = None


class Loader:
    """A stream as this trainer sees it. Made by :func:`connect`.

    Iterating gives one epoch: epoch 0 first, then the next by itself, or as ``set_epoch`` says.
    Iterators are independent of each other. An error of one batch is raised by ``next``; the
    iteration can go on behind it.
    """

    def __init__(self, address: Address, request: Subscribe, options: Options) -> None:
        self._address, self._request = address, request
        self.options = options
        self.meter = Meter()
        self._closed = False
        self._attaching = threading.Lock()
        #: Samples that ``on_error: skip | substitute`` left out of this trainer's batches.
        self.failures: deque[FailedSample] = deque(maxlen=_MOST_FAILURES)
        #: Of the iterator begun last; None before the first, and after ``load_state_dict``.
        self._progress: Progress | None = None
        self._next = Place()
        #: What a daemon that comes back must serve again.
        self._facts: dict[str, Any] | None = None
        self._attach()
        mode, size = self.described.mode, request.batch_size or self.described.batch_size
        self._next = first_place(options.start, mode, size)
        if self.described.shards:
            log.warning(_ITERABLE, request.stream)
        forking.register(self)

    def _attach(self) -> None:
        self._pid = os.getpid()
        self._numbers = itertools.count()
        #: Subscriptions that no iterator uses: by whether they are for a place within a batch.
        self._idle: dict[bool, list[Subscription]] = {False: [], True: []}
        self._connection = Connection(self._address, self.options.timeout_s)
        self._finalizer = weakref.finalize(self, self._connection.close)
        try:
            subscription, self.described = self._subscribe(within_batch=False)
            self._check_stream(self.described)
        except BaseException:
            self._finalizer()
            raise
        self._batches = self._count(self.described)
        self._idle[False].append(subscription)

    def _subscribe(self, *, within_batch: bool) -> tuple[Subscription, Subscribed]:
        number = next(self._numbers)
        request = replace(self._request, sub=number, epoch=self._next.epoch)
        if within_batch:  # it may need rows of a tail that others drop
            request = replace(request, drop_last=0)
        subscription = Subscription(self._connection, number, request)
        return subscription, subscription.opened()

    def _check_stream(self, described: Subscribed) -> None:
        """A daemon that came back must serve the same stream.

        Raises: StateMismatch.
        """
        facts: dict[str, Any] = json.loads(described.order)
        if not self._request.batch_size:
            facts["batch_size"] = described.batch_size
        if self._facts not in (None, facts):
            found = resume.differences(facts, self._facts or {}, "now", "before")
            raise StateMismatch(
                f"the daemon came back with another stream {self.stream!r}: {'; '.join(found)}. Connect "
                f"anew, or start a daemon with the configuration of before"
            )
        self._facts = facts

    def _count(self, described: Subscribed) -> int:
        size = self.cut_size
        if not size or described.positions < 0:
            return described.batches
        whole, rest = divmod(described.positions, size)
        return whole + (1 if rest and not described.drop_last else 0)

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._request.stream

    @property
    def cut_size(self) -> int:
        """The batch size that this trainer cuts to; 0 where it takes batches as they are made."""
        own = self._request.batch_size
        return 0 if own == self.described.batch_size else own

    def __len__(self) -> int:
        """Batches of an epoch (of the last one started); in a queue, of all trainers together.

        Raises: TypeError where nobody knows before the epoch's end.
        """
        if self._batches < 0:
            raise TypeError(f"stream {self.stream!r} has no length: its dataset is iterable")
        return self._batches

    def __iter__(self) -> EpochIterator:
        """Starts the next epoch, or goes on where ``load_state_dict`` said."""
        place = self._next
        self._next = Place(place.epoch + 1)
        return EpochIterator(self, place)

    def set_epoch(self, epoch: int) -> None:
        """The next ``iter()`` is this epoch, and those after it count on from there.

        An epoch that ``load_state_dict`` is in the middle of is gone on with, not begun anew.
        """
        epoch = arguments.whole("epoch", epoch)
        if not (self._progress is None and self._next.epoch == epoch):
            self._next = Place(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where this trainer is: small, readable, plain enough for JSON and ``torch.save``.

        It counts what was given out by the iterator begun last, not what is prefetched.
        """
        place = self._next if self._progress is None else self._progress.place()
        return resume.write_state(place, self._as_stream())

    def load_state_dict(self, state: resume.State | Sequence[resume.State]) -> None:
        """The next ``iter()`` goes on where the state was taken.

        ``state``: this rank's, or a list of all ranks', or one that stands for all as their counts are
        equal. Number of workers, prefetch and batch size may be others; so may the world size: then
        what is left of the epoch is dealt anew.

        Raises: StateMismatch (a ValueError) naming each difference.
        """
        self._next = resume.read_states(state, self._as_stream())
        self._progress = None

    def _as_stream(self) -> resume.Stream:
        request = self._request
        by_sampler = self.described.batch_size == 0
        return resume.Stream(
            self.stream, self.described.order, request.rank, request.world_size,
            cut_by_sampler=by_sampler,
        )  # fmt: skip

    def stats(self) -> LoaderStats:
        """Batches, bytes, and the time waited for data since ``connect``.

        Gives back, by the way, what came late for iterators that were dropped.
        """
        if not self._closed and self._pid == os.getpid():
            self._connection.take_in()
            for idle in self._idle.values():
                _discard(idle)
        return self.meter.read()

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

    def __reduce__(self) -> Any:
        raise TypeError(
            f"the loader of stream {self.stream!r} cannot be pickled or copied: it belongs to its "
            f"process. Connect in the process that reads, and send state_dict() there"
        )

    # --- for its iterators and the fork hooks -----------------------------------------------

    def began(self, progress: Progress) -> None:
        """An iterator was begun: states count what it gives out."""
        self._progress = progress

    def joined(self, epoch: int) -> None:
        """The daemon told which epoch the others are in."""
        self._next = Place(epoch + 1)

    def epoch_has(self, batches: int) -> None:
        """The length of the epoch that was started last."""
        self._batches = batches

    def lend(self, *, within_batch: bool) -> Subscription:
        """A subscription for an iterator to use.

        Raises: LoaderClosed, DaemonLost.
        """
        self.ensure_attached()
        try:
            return self._idle[within_batch].pop()
        except IndexError:  # asked first, another thread could take it between question and pop
            return self._subscribe(within_batch=within_batch)[0]

    def take_back(self, subscription: Subscription, *, within_batch: bool) -> None:
        """An iterator needs its subscription no more."""
        if subscription.connection is self._connection and not self._closed:
            self._idle[within_batch].append(subscription)

    def ensure_attached(self) -> None:
        """In a forked child, attaches anew.

        Raises: LoaderClosed.
        """
        if self._closed:
            raise LoaderClosed(f"the loader of stream {self.stream!r} is closed; connect again")
        if self._pid != os.getpid():
            self._attach()

    def come_back(self, lost: Connection, error: LoaderdError) -> None:
        """The daemon at the end of ``lost`` is gone: attaches to the one that takes its place.

        Raises: ``error`` where that is not asked for, or none came in time; StateMismatch.
        """
        if self._closed or (self.options.reconnect_s <= 0 and lost is self._connection):
            raise error
        with self._attaching:
            if self._closed:
                raise error
            if lost is self._connection:
                self._attach_again(error)

    def _attach_again(self, error: LoaderdError) -> None:
        began = time.monotonic()
        patience_s = self.options.reconnect_s
        # As text: a record may be kept, and with an error the frames that hold batches.
        log.warning("%s Waiting up to %g s for another (reconnect_s).", str(error), patience_s)
        self._finalizer()
        while True:
            try:
                self._attach()
            except (DaemonNotRunning, DaemonLost, DaemonTimeout):
                if time.monotonic() - began >= patience_s:
                    raise error from None
                time.sleep(_LOOK_S)
                continue
            self.meter.reconnects += 1
            log.warning(
                "attached to another daemon (pid %d) after %.2f s; stream %r goes on",
                self._connection.daemon_pid, time.monotonic() - began, self.stream,
            )  # fmt: skip
            return

    @property
    def connection(self) -> Connection:
        """The line to the daemon as it is now."""
        return self._connection

    def holds_views(self) -> bool:
        """Whether a forked child would inherit views."""
        return bool(self._connection.lease.out)

    def after_fork_in_child(self) -> None:
        """Views become the child's own, the parent's line is let go of."""
        self._attaching = threading.Lock()
        self._connection.lease.make_own()
        self._finalizer.detach()
        self._connection.abandon()


def _discard(idle: list[Subscription]) -> None:
    """What came for subscriptions that nobody uses is given back; nobody else gets one meanwhile."""
    taken = []
    while idle:
        with contextlib.suppress(IndexError):  # another thread was quicker
            taken.append(idle.pop())
    for subscription in taken:
        subscription.discard()
    idle.extend(taken)
