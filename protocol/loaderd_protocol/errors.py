"""Errors of loaderd: each type says whose fault it is and what the caller can do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class LoaderdError(Exception):
    """Root of every error that loaderd raises; its text says what happened and what to do next."""


class ProtocolError(LoaderdError):
    """A peer sent what the protocol does not allow: garbage, a foreign token, an unknown type."""


class VersionMismatch(ProtocolError):
    """Client and daemon speak different protocol versions; install the same loaderd on both sides."""


class DaemonNotRunning(LoaderdError):
    """Nobody listens at the address: start ``loaderd serve``, or correct the address."""


class DaemonLost(LoaderdError):
    """The daemon that served this loader has ended; batches already in hand stay valid."""


class DaemonTimeout(LoaderdError, TimeoutError):
    """No batch came within ``timeout_s``; the daemon is alive but stopped, or its workers are slow."""


class LoaderClosed(LoaderdError):
    """The loader was used after ``close()``."""


class UnknownStream(LoaderdError):
    """The daemon has no stream of that name; the text lists those there are."""


class SubscriptionRefused(LoaderdError):
    """The daemon cannot take this trainer now (memory, rank, mode); the text has the numbers."""


class EncodingError(LoaderdError, TypeError):
    """A value cannot be carried in a batch without pickle; the text names its place and type."""


class OutOfMemory(LoaderdError, MemoryError):
    """An allocation would pass the memory budget; the text says needed, available, which setting."""


class AddressError(LoaderdError):
    """A run directory cannot be used (path too long, wrong owner or mode); the text says which."""


class AddressInUse(AddressError):
    """Another daemon owns the run directory; the text names its pid."""


class BatchError(LoaderdError):
    """One batch could not be made; later batches are unaffected.

    Attributes: ``failure`` (the :class:`Failure` that the daemon sent).
    """

    def __init__(self, text: str, failure: Failure | None = None) -> None:
        super().__init__(text)
        self.failure = failure


class SampleError(BatchError):
    """A sample raised an exception whose class cannot be rebuilt here; the text names the class."""


class WorkerDied(BatchError):
    """A sample ended its worker (signal or exit) each time it was tried."""


class WorkerTimeout(BatchError):
    """A sample kept its worker busy for longer than ``workers.timeout_s``."""


class BatchTooLarge(BatchError, MemoryError):
    """A batch needs more memory than the budget leaves; raise ``memory`` or lower ``batch_size``."""


class TooManyFailures(BatchError):
    """More samples failed than ``on_error`` allows by count or by rate."""


class StreamEnded(LoaderdError):
    """The stream cannot go on (its dataset could not be built, its order could not be made)."""


class StateMismatch(LoaderdError, ValueError):
    """A state does not fit the stream, or the stream is another one now; the text names each difference."""


class ErrorCode(IntEnum):
    """What crosses the wire in ``Refused.code`` and ``Failure.code``. Codes never change meaning."""

    PROTOCOL = 1
    VERSION = 2
    UNKNOWN_STREAM = 3
    REFUSED = 4
    STREAM_ENDED = 5
    SAMPLE = 10
    WORKER_DIED = 11
    WORKER_TIMEOUT = 12
    TOO_LARGE = 13
    TOO_MANY_FAILURES = 14


#: The class that the client raises for each code.
ERROR_CLASSES: dict[ErrorCode, type[LoaderdError]] = {
    ErrorCode.PROTOCOL: ProtocolError,
    ErrorCode.VERSION: VersionMismatch,
    ErrorCode.UNKNOWN_STREAM: UnknownStream,
    ErrorCode.REFUSED: SubscriptionRefused,
    ErrorCode.STREAM_ENDED: StreamEnded,
    ErrorCode.SAMPLE: SampleError,
    ErrorCode.WORKER_DIED: WorkerDied,
    ErrorCode.WORKER_TIMEOUT: WorkerTimeout,
    ErrorCode.TOO_LARGE: BatchTooLarge,
    ErrorCode.TOO_MANY_FAILURES: TooManyFailures,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a batch or a sample failed, as it travels from the worker through the daemon to a trainer."""

    code: ErrorCode
    #: Dataset index of the sample at fault, or -1 where no single sample is.
    index: int
    #: ``module:qualname`` of the exception class, or "" where there was no exception.
    class_name: str
    #: ``str(exception)``, or what happened and what to do next.
    text: str
    #: The worker's formatted traceback, or "".
    traceback: str = ""
    #: "worker 2, pid 4711", or "".
    where: str = ""
