"""What a worker can be asked to do, and what it answers; ``workers.frames`` puts them on a socket."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loaderd_protocol.errors import Failure

Indices = npt.NDArray[np.int64]
#: No place: a row that is not in the cache, or is not to be kept.
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Where in which arena a batch is to be written, and how much room there is."""

    arena: int
    offset: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class BatchAddress:
    """The coordinates a batch is a pure function of, but for the stream's own settings."""

    stream: str
    seed: int
    epoch: int
    batch: int
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True)
class Cached:
    """What the cache has of a task's rows, one number a row, and what it would like to have.

    ``memory``: byte offset of the row's record in the dataset's cache arena, or NOWHERE.
    ``disk``: the same in its disk tier; None where it has none.
    ``offer``: rows (ascending) whose samples, once loaded, the worker holds ready for Keep.
    """

    memory: Indices
    disk: Indices | None
    offer: Indices


@dataclass(frozen=True, slots=True)
class OrderTask:
    """Make the order of an epoch, before it is cut into ranks.

    ``inverts``: with its inverse, for a cache that asks when a sample is used next.
    """

    task: int
    dataset: str
    stream: str
    seed: int
    epoch: int
    inverts: bool = False


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """Make a batch on the heap to learn how large it is. Samples that fail are passed over."""

    task: int
    dataset: str
    address: BatchAddress
    indices: Indices
    occurrences: Indices | None


@dataclass(frozen=True, slots=True)
class BatchTask:
    """Make a batch of these samples, in this order, in this place.

    ``occurrences`` (None: all 0) tells apart the draws of one index in one epoch's order.
    ``cached`` is None where the dataset has no cache. ``coming``: indices, ascending, that are likely
    to be loaded soon, for a dataset that reads ahead (``will_need``).
    """

    task: int
    dataset: str
    address: BatchAddress
    indices: Indices
    occurrences: Indices | None
    place: Place
    cached: Cached | None = None
    coming: Indices | None = None


@dataclass(frozen=True, slots=True)
class ProbeTask:
    """Load and transform these samples and throw them away: the search for one that kills."""

    task: int
    dataset: str
    address: BatchAddress
    indices: Indices
    occurrences: Indices | None


@dataclass(frozen=True, slots=True)
class IterateTask:
    """Make the ``unit``-th batch, from 0, of a shard of an iterable dataset, of up to ``rows`` samples.

    ``address.batch`` is the batch's own number, unit * shards + shard. ``state`` (b"": none) is the
    dataset's as it was right before unit ``state_unit`` of this shard and epoch.
    """

    task: int
    dataset: str
    address: BatchAddress
    shard: int
    shards: int
    unit: int
    rows: int
    #: A last unit of fewer than ``rows`` samples is none.
    drop_last: bool
    place: Place
    state: bytes
    state_unit: int


@dataclass(frozen=True, slots=True)
class MeasureIterateTask:
    """Make a shard's first batch on the heap to learn how large it is; it is not lost by that."""

    task: int
    dataset: str
    address: BatchAddress
    shard: int
    shards: int
    rows: int
    drop_last: bool


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Load these samples twice, under the keys of two epochs: may they be cached?"""

    task: int
    dataset: str
    indices: Indices


@dataclass(frozen=True, slots=True)
class FillTask:
    """Load these samples and hold them ready for Keep, for nobody but the cache."""

    task: int
    dataset: str
    indices: Indices
    coming: Indices | None = None


Task = (
    OrderTask | MeasureTask | BatchTask | ProbeTask | IterateTask | MeasureIterateTask | CheckTask
    | FillTask
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Offers:
    """Samples that a worker holds ready to be kept: rows of its task, and the bytes of each record."""

    rows: Indices
    sizes: Indices


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row of the task (or -1: the batch as a whole, such as its collate) that failed."""

    row: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class OrderDone:
    """The order: dataset indices, in the order in which they are drawn.

    ``occurrences[i]`` counts how often ``indices[i]`` was drawn before in this order (None: never).
    ``cuts`` (None: cut by batch_size) are the m + 1 bounds of m batches, from 0 to len(indices).
    ``inverse`` (None: not asked for): where ``occurrences`` is None, the int32 position of every dataset
    index in the order, -1 for those not in it; else the sorted int64 keys ``index << 32 | position``.
    """

    task: int
    indices: Indices
    occurrences: Indices | None
    cuts: Indices | None
    inverse: npt.NDArray[np.int32] | Indices | None = None


@dataclass(frozen=True, slots=True)
class MeasureDone:
    """The slot that the batch would need, in bytes; 0 where no sample could be loaded."""

    task: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The batch is in its place. ``rows`` is 0 where every sample failed; nothing is written then.

    ``skipped``: rows of the task left out (only for streams with ``on_error: skip``).
    ``load_s``, ``transform_s``, ``collate_s``: where the time went.
    ``state``: an iterable dataset's own, right after this batch; b"" where it has none.
    ``hits`` and ``disk_hits``: rows whose sample came from the cache's memory, and from its disk tier.
    ``unread``: rows whose record was not what it should have been; their samples were loaded instead.
    ``offers``: None where none were asked for.
    """

    task: int
    rows: int
    size_bytes: int
    layout: bytes
    tail_offset: int
    tail_bytes: int
    skipped: tuple[RowFailure, ...] = ()
    load_s: float = 0.0
    transform_s: float = 0.0
    collate_s: float = 0.0
    state: bytes = b""
    hits: int = 0
    disk_hits: int = 0
    unread: tuple[int, ...] = ()
    offers: Offers | None = None


@dataclass(frozen=True, slots=True)
class IteratorOver:
    """The shard has no such unit: its iterator ended after ``units``. Nothing is written."""

    task: int
    units: int


@dataclass(frozen=True, slots=True)
class BatchTooLarge:
    """The batch needs a slot of ``needed_bytes``; nothing is written, the task must be given again."""

    task: int
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class ProbeDone:
    """Every sample of the probe was loaded and transformed, or raised an exception; none killed."""

    task: int


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """Exceptions ended the task; the worker is well.

    ``on_error: raise`` names the first row that failed, ``substitute`` every one.
    """

    task: int
    failures: tuple[RowFailure, ...]


@dataclass(frozen=True, slots=True)
class CheckDone:
    """Whether the dataset's samples may be cached. ``fault`` says why not, and what to do; "" if they may.

    ``record_bytes``: the largest record among those loaded; 0 where none could be loaded.
    ``load_s``: seconds that one load takes, in the mean.
    """

    task: int
    fault: str
    record_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True)
class FillDone:
    """The samples that could be loaded are ready to be kept; those that fail are left to batches."""

    task: int
    offers: Offers
    load_s: float


Result = (
    OrderDone | MeasureDone | BatchDone | BatchTooLarge | ProbeDone | TaskFailed | IteratorOver
    | CheckDone | FillDone
)  # fmt: skip
