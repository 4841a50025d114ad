"""loaderd: batches from a running daemon, as zero-copy tensors.

>>> with loaderd.connect("train") as loader:
...     for images, labels in loader:
...         ...
"""

from loaderd.loader import Loader, connect
from loaderd.stats import LoaderStats
from loaderd_protocol.errors import (
    AddressError,
    BatchError,
    BatchTooLarge,
    DaemonLost,
    DaemonNotRunning,
    DaemonTimeout,
    Failure,
    LoaderClosed,
    LoaderdError,
    ProtocolError,
    SampleError,
    StateMismatch,
    StreamEnded,
    SubscriptionRefused,
    TooManyFailures,
    UnknownStream,
    VersionMismatch,
    WorkerDied,
    WorkerTimeout,
)
from loaderd_protocol.messages import FailedSample

__version__ = "0.1.0"

__all__ = [
    "AddressError",
    "BatchError",
    "BatchTooLarge",
    "DaemonLost",
    "DaemonNotRunning",
    "DaemonTimeout",
    "FailedSample",
    "Failure",
    "Loader",
    "LoaderClosed",
    "LoaderStats",
    "LoaderdError",
    "ProtocolError",
    "SampleError",
    "StateMismatch",
    "StreamEnded",
    "SubscriptionRefused",
    "TooManyFailures",
    "UnknownStream",
    "VersionMismatch",
    "WorkerDied",
    "WorkerTimeout",
    "__version__",
    "connect",
]
