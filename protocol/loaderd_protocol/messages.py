"""Every message between a trainer and the daemon, and its fields (``rules``: their codes, and who sends them).

``PROTOCOL.md`` tells the same in prose; a test holds the two together. The meaning and order of fields
never change within a protocol version; a new field is appended with a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from loaderd_protocol.errors import Failure

PROTOCOL_VERSION = 1
#: ``Release.slot`` for a batch that came without a slot (BatchFailed, BatchEmpty).
NO_SLOT = 0xFFFF_FFFF
#: The largest integer of a message; epochs and world sizes end earlier.
MOST_INTEGER = 2**63 - 1
MOST_EPOCH = 2**31 - 1
#: DistributedSampler pads an order to a multiple of it: a wrong one must not fill the memory.
MOST_WORLD_SIZE = 65536


@dataclass(frozen=True, slots=True)
class FailedSample:
    """A sample that ``on_error: skip | substitute`` left out of a batch.

    ``position`` counts in the epoch's order of this sequence; ``index`` is the dataset's.
    """

    position: int
    index: int
    text: str


# --- on the lease ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """First message of a trainer: asks for a lease."""

    version: int
    client: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The lease is granted. ``token`` (16 bytes) must open the ZeroMQ conversation."""

    version: int
    lease: int
    token: bytes
    endpoint: str
    daemon_pid: int
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """No lease; the daemon closes the connection after it. ``code`` is an ErrorCode."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class ArenaAdded:
    """An arena this trainer may see announced; its read-only descriptor rides on the packet."""

    arena: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Is the daemon's loop alive?"""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The loop is alive."""

    number: int


@dataclass(frozen=True, slots=True)
class Release:
    """A trainer gives back one announced batch, and with it one credit.

    ``slot`` and ``generation`` are the announcement's. For BatchFailed and BatchEmpty, which carry
    no slot, ``slot`` is NO_SLOT and ``generation`` is the batch's index.
    Fixed size on the wire (see codec), so that a finalizer can send it without allocating.
    """

    sub: int
    slot: int
    generation: int


@dataclass(frozen=True, slots=True)
class Done:
    """Of what was announced to ``sub`` in ``iteration``, the trainer is done with the first ``count``.

    Said in streams of mode ``queue``, where a batch whose trainer dies before it is done is given to
    another. The count only grows, so that it does not matter in which order such messages come in.
    ``leaves``, in any mode: it takes no more of that iteration.
    """

    sub: int
    iteration: int
    count: int
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """The trainer takes nothing more: its cursors end, and all it was announced comes back at once.

    ``kept`` names what its views still show; each of these is released as usual, later.
    ``done``: what it is done with, one for each ``sub`` of a queue.
    """

    kept: tuple[Release, ...]
    done: tuple[Done, ...] = ()


@dataclass(frozen=True, slots=True)
class Dealt:
    """A part of an epoch that is over: ``counts[r]`` units went to rank r of ``world_size``.

    A unit is a sample, or a batch where a batch sampler cuts the order.
    """

    world_size: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardState:
    """The state of one shard of an iterable dataset right before its batch number ``unit``."""

    shard: int
    unit: int
    state: bytes


# --- over ZeroMQ, from a trainer ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Binds this ZeroMQ identity to the lease that ``token`` was given to. Sent once, first."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Asks for a cursor ``sub`` (chosen by the trainer, unique in its lease) in a sequence.

    ``epoch``: the one whose order is to be made ready, and whose length is answered.
    ``prefetch``: batches the trainer wants made ahead of the one it works on; it is granted
    credits for these and for two views. ``seed``: of its own order in mode ``independent``; -1 for
    the stream's. ``batch_size``: the size the trainer cuts batches to, 0 for the stream's.
    ``drop_last``: 0 or 1, -1 for the stream's.
    """

    sub: int
    stream: str
    rank: int
    world_size: int
    prefetch: int
    epoch: int
    seed: int = -1
    batch_size: int = 0
    drop_last: int = -1


class Where(IntEnum):
    """What Start means by its place."""

    #: The batch and epoch it names.
    EXACT = 0
    #: Where the foremost trainer is; the named place where there is none.
    LIVE = 1


@dataclass(frozen=True, slots=True)
class Start:
    """Puts the cursor at ``batch`` of ``epoch`` and lets announcements flow.

    ``iteration`` grows with every Start of a ``sub``; announcements repeat it, so that those of an
    abandoned iteration are known and given back. ``dealt``: parts of the epoch that went to earlier
    world sizes; the rest is dealt anew, and ``batch`` counts in that rest. ``failed``: positions that
    were decided as failed when the trainer was given its batches. For a queue, ``done`` are batches
    not to be given again, as pairs (first, last + 1), and ``count`` is the former iteration's Done.
    ``states``: of an iterable dataset's shards, as Announce had them.
    """

    sub: int
    iteration: int
    epoch: int
    batch: int
    where: Where = Where.EXACT
    dealt: tuple[Dealt, ...] = ()
    failed: tuple[int, ...] = ()
    done: tuple[int, ...] = ()
    count: int = 0
    states: tuple[ShardState, ...] = ()


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Ends a cursor. What is still announced must be released by the trainer as usual."""

    sub: int


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Asks what the daemon is doing (``loaderd status``)."""

    request: int


# --- over ZeroMQ, from the daemon -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """Hello was right; the ZeroMQ conversation is open."""

    lease: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The cursor exists. ``batches`` is the length of the epoch that Subscribe named.

    ``batch_size`` is 0 where a batch sampler decides. ``samples`` is ``len(dataset)``. ``positions``:
    how many samples of that epoch are this cursor's. ``order``: what fixes the stream's orders, as a
    JSON object. ``uncuttable``: why batches cannot be cut to another size, "" where they can. ``shards``: of an iterable dataset, else 0. ``batches``, ``samples`` and ``positions`` are -1 where nobody knows before the end.
    """

    sub: int
    mode: str
    samples: int
    batches: int
    batch_size: int
    drop_last: bool
    credits: int
    positions: int = -1
    order: str = "{}"
    uncuttable: str = ""
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Subscribe (or the whole subscription, later) is refused; ``code`` is an ErrorCode."""

    sub: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Granted:
    """The credits of ``sub`` are now ``credits``: at most so many announced and not released."""

    sub: int
    credits: int


@dataclass(frozen=True, slots=True)
class EpochStarted:
    """The order of ``epoch`` is ready; it has ``batches`` batches for this cursor, which is at ``batch``.

    ``positions``: how many samples are in them, the tail that drop_last leaves out included.
    ``batches`` and ``positions`` are -1 where EpochEnded will tell the end.
    """

    sub: int
    iteration: int
    epoch: int
    batches: int
    batch: int = 0
    positions: int = -1


@dataclass(frozen=True, slots=True)
class Announce:
    """A batch is in a slot and stays there until the trainer's Release (or its death).

    The slot is ``size_bytes`` from ``offset`` of ``arena``. ``layout`` is opaque to the daemon
    (see layout.py); tensors' offsets in it count from ``offset``. The tail (values that are no
    tensors) is ``tail_bytes`` from ``offset + tail_offset``. ``remade``: it had been made before.
    ``stalled_s``: how long it was held back as the window was full. ``state``: an iterable
    dataset's state behind this batch, opaque to the trainer.
    """

    sub: int
    iteration: int
    epoch: int
    batch: int
    arena: int
    slot: int
    generation: int
    offset: int
    size_bytes: int
    rows: int
    layout: bytes
    tail_offset: int
    tail_bytes: int
    failed: tuple[FailedSample, ...] = ()
    remade: bool = False
    stalled_s: float = 0.0
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """This batch could not be made; it takes a credit until released with NO_SLOT."""

    sub: int
    iteration: int
    epoch: int
    batch: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class BatchEmpty:
    """Every sample of this batch was skipped; it takes a credit until released with NO_SLOT."""

    sub: int
    iteration: int
    epoch: int
    batch: int
    failed: tuple[FailedSample, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """Nothing more comes of the iteration: ``batches`` batches were in the epoch."""

    sub: int
    iteration: int
    batches: int


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The last message of ``sub``; the trainer may use the number again."""

    sub: int


@dataclass(frozen=True, slots=True)
class Status:
    """Answer to AskStatus: a JSON document, for people and scripts (see docs/operations.md)."""

    request: int
    document: str
