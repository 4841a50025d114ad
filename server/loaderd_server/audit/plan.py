"""What an audit is asked to do, checked against the configuration: who trains, as which rank, how cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loaderd_server.audit.expected import Cut, SequenceKey
from loaderd_server.audit.failure import AuditFailed
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.config import Config, MixtureConfig, SamplerConfig, StreamConfig

_MOST_TRAINERS = 64


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """What was asked for.

    ``batch_sizes`` go round among the trainers; none: the stream's own. ``workers``: a private
    daemon is started for each. ``address``: a running daemon to audit instead. ``trainers``: None
    for 2, or for the world size.
    """

    config_file: Path
    stream: str
    trainers: int | None = None
    batch_sizes: tuple[int, ...] = ()
    workers: tuple[int, ...] = (1, 3)
    epochs: int = 2
    world_size: int = 1
    address: Path | None = None
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class TrainerPlan:
    """One trainer; ``cut.size`` is its batch size."""

    number: int
    sequence: SequenceKey
    cut: Cut

    @property
    def has_own_size(self) -> bool:
        """Whether it asks for another batch size than the stream's."""
        return self.cut.size != self.cut.made_size


def stream_of(request: AuditRequest, config: Config) -> StreamConfig:
    """The stream's settings.

    Raises: AuditFailed for what cannot be audited so.
    """
    stream = config.streams.get(request.stream)
    if stream is None:
        _refuse(f"there is no stream {request.stream!r}; there is {', '.join(config.streams)}")
    assert stream is not None
    if request.world_size > 1 and stream.mode != "shard":
        _refuse(f"world size {request.world_size}: stream {request.stream!r} is {stream.mode}; "
                f"ranks count in streams of mode shard")  # fmt: skip
    if request.address is not None and stream.mode == "queue":
        _refuse(f"stream {request.stream!r} is a queue: auditing it at {request.address} would take "
                f"batches from its trainers; leave --address out")  # fmt: skip
    _check_numbers(request)
    _check_awaited(request, stream)
    return stream


def trainers_of(
    request: AuditRequest, stream: StreamConfig, *, whole: bool
) -> tuple[TrainerPlan, ...]:
    """The trainers to run. ``whole``: the stream's batches are its own affair and cannot be cut.

    Raises: AuditFailed.
    """
    sizes = request.batch_sizes or (stream.batch_size,)
    if set(sizes) != {stream.batch_size} and (whole or stream.batch_size is None):
        _refuse(f"batch sizes {', '.join(map(str, sizes))}: the batches of stream "
                f"{request.stream!r} are made by user code and cannot be cut; leave --batch-sizes "
                f"out")  # fmt: skip
    plans = []
    for number in range(_trainers(request)):
        rank = number % request.world_size
        # In mode independent each trainer has an order of its own.
        seed = stream.seed + (number if stream.mode == "independent" else 0)
        cut = Cut(sizes[number % len(sizes)], stream.batch_size, stream.drop_last, whole)
        plans.append(TrainerPlan(number, SequenceKey(seed, rank, request.world_size), cut))
    return tuple(plans)


def draws_each_once(stream: StreamConfig) -> bool:
    """Whether the stream's sampler promises each index once an epoch."""
    return not isinstance(stream.sampler, SamplerConfig) and not isinstance(
        stream.dataset, MixtureConfig
    )


def _trainers(request: AuditRequest) -> int:
    if request.trainers is not None:
        return request.trainers
    return request.world_size if request.world_size > 1 else 2


def _check_numbers(request: AuditRequest) -> None:
    trainers = _trainers(request)
    if not 1 <= trainers <= _MOST_TRAINERS:
        _refuse(f"{trainers} trainers; from 1 to {_MOST_TRAINERS} can be run")
    if trainers < request.world_size:
        _refuse(
            f"{trainers} trainers cannot be {request.world_size} ranks; give at least as many "
            f"--trainers as --world-size"
        )
    counts = (*request.batch_sizes, *request.workers, request.epochs, request.world_size)
    if min(counts) < 1:
        _refuse(
            f"{min(counts)} is too few: batch sizes, workers, epochs and world size are 1 or more"
        )
    if not request.workers and request.address is None:
        _refuse("no number of workers is given; a private daemon is started for each")


def _check_awaited(request: AuditRequest, stream: StreamConfig) -> None:
    awaited = stream.await_trainers
    if awaited is not None and awaited.count > _trainers(request):
        _refuse(
            f"stream {request.stream!r} awaits {awaited.count} trainers before it makes anything; "
            f"give --trainers {awaited.count}"
        )


def _refuse(text: str) -> None:
    raise AuditFailed(text, ExitCode.CONFIG)
