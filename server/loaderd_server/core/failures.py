"""What becomes of samples that fail: positions are decided once, kept, counted, and told in words."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_protocol.messages import FailedSample
from loaderd_server.core.jobs import WorkerLoss
from loaderd_server.core.sequences import Epoch
from loaderd_server.core.settings import ErrorPolicy, OnError, StreamSettings
from loaderd_server.core.tasks import Indices

_LONGEST_TEXT = 500
#: Samples made before ``max_rate`` is looked at.
_RATE_FROM_SAMPLES = 100


def decide(epoch: Epoch, batch: int, failed: Iterable[tuple[int, Failure]]) -> Failure | None:
    """Decides these positions as failed, found while making ``batch``.

    Returns why the batch must fail itself: a position had been good before, or a cap is passed.
    """
    settings = epoch.sequence.stream.settings
    for position, failure in failed:
        if position in epoch.failed:
            continue
        if _was_good(epoch, position):
            return _changed_its_mind(position, failure)
        epoch.failed[position] = FailedSample(
            position, int(epoch.view.indices[position]), _short(failure)
        )
        epoch.failed_version += 1
    return _over_cap(epoch, batch, settings)


def recall_failures(epoch: Epoch, positions: Iterable[int]) -> None:
    """Decides as failed what a trainer was told of as failed, before this daemon or this epoch was there."""
    if epoch.sequence.stream.settings.on_error.policy is ErrorPolicy.RAISE:
        return
    for position in positions:
        is_ours = 0 <= position < epoch.view.length and position not in epoch.failed
        if is_ours and not _was_good(epoch, position):
            index = int(epoch.view.indices[position])
            epoch.failed[position] = FailedSample(position, index, "it failed before")
            epoch.failed_version += 1


def good_positions(epoch: Epoch, batch: int) -> Indices | range:
    """The positions of a batch that are not known as failed."""
    positions = epoch.view.positions(batch)
    if not any(position in epoch.failed for position in positions):
        return positions
    return np.array([p for p in positions if p not in epoch.failed], dtype=np.int64)


def substituted_positions(epoch: Epoch, batch: int) -> Indices | range:
    """The positions of a batch, each failed one replaced by the next good one, going round.

    Empty where every position of the order failed.
    """
    positions = epoch.view.positions(batch)
    failed, length = epoch.failed, epoch.view.length
    if not any(position in failed for position in positions):
        return positions
    if len(failed) >= length:
        return range(0)
    chosen = []
    for position in positions:
        while position in failed:
            position = (position + 1) % length
        chosen.append(position)
    return np.array(chosen, dtype=np.int64)


def failed_in(epoch: Epoch, batch: int) -> tuple[FailedSample, ...]:
    """The failed samples of a batch, in order."""
    if not epoch.failed:
        return ()
    return tuple(epoch.failed[p] for p in epoch.view.positions(batch) if p in epoch.failed)


def _was_good(epoch: Epoch, position: int) -> bool:
    batch = epoch.view.batch_of(position)
    return batch < epoch.batches and bool(epoch.decided[batch])


def _changed_its_mind(position: int, failure: Failure) -> Failure:
    return Failure(
        failure.code,
        failure.index,
        failure.class_name,
        f"sample {failure.index} (position {position} of the epoch) was good when its batch was "
        f"first made and failed now, so the same batch cannot be made again: {failure.text}",
        failure.traceback,
        failure.where,
    )


def _over_cap(epoch: Epoch, batch: int, settings: StreamSettings) -> Failure | None:
    caps, failed = settings.on_error, len(epoch.failed)
    if caps.max_count is not None and failed > caps.max_count:
        limit = f"on_error.max_count = {caps.max_count}"
        return _too_many(epoch, f"{failed} samples failed", settings.name, limit)
    made = epoch.samples_made + (0 if epoch.decided[batch] else len(epoch.view.positions(batch)))
    if _rate_is_over(caps, failed, made):
        limit = f"on_error.max_rate = {caps.max_rate:g}"
        return _too_many(epoch, f"{failed} of {made} samples failed", settings.name, limit)
    return None


def _rate_is_over(caps: OnError, failed: int, made: int) -> bool:
    if caps.max_rate is None or made < _RATE_FROM_SAMPLES:
        return False
    return failed > caps.max_rate * made


def _too_many(epoch: Epoch, what: str, stream: str, limit: str) -> Failure:
    last = next(reversed(epoch.failed.values()))
    text = (
        f"{what} in epoch {epoch.number}, over streams.{stream}.{limit}; the last was sample "
        f"{last.index}: {last.text}"
    )
    return Failure(ErrorCode.TOO_MANY_FAILURES, last.index, "", text)


def _short(failure: Failure) -> str:
    text = f"{failure.class_name}: {failure.text}" if failure.class_name else failure.text
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."


def culprit(stream: str, index: int, deaths: int, loss: WorkerLoss) -> Failure:
    """The failure of a sample that ended its workers, or kept them busy for too long."""
    advice = (
        f"Later batches are not affected. Look at what the dataset does for index {index}, or set "
        f"streams.{stream}.on_error to skip or substitute"
    )
    if loss.timed_out:
        text = (
            f"sample {index} kept its worker busy for longer than workers.timeout_s ({loss.where}, "
            f"which was ended). {advice}, or raise workers.timeout_s"
        )
        return Failure(ErrorCode.WORKER_TIMEOUT, index, "", text, where=loss.where)
    text = f"sample {index} ended its worker {deaths} times ({loss.where}, {loss.how}). {advice}"
    return Failure(ErrorCode.WORKER_DIED, index, "", text, where=loss.where)


def deadly_batch(batch: int, deaths: int, loss: WorkerLoss) -> Failure:
    """The failure of a batch that ends its workers though no sample of it does alone."""
    code = ErrorCode.WORKER_TIMEOUT if loss.timed_out else ErrorCode.WORKER_DIED
    if loss.timed_out:
        text = (
            f"batch {batch} kept its worker busy for longer than workers.timeout_s ({loss.where}, which "
            f"was ended), and not with one sample: look at its collate, or raise workers.timeout_s"
        )
        return Failure(code, -1, "", text, where=loss.where)
    text = (
        f"batch {batch} ended its worker {deaths} times ({loss.where}, {loss.how}), though no sample "
        f"of it does so alone: look at its collate, and at the memory the whole batch needs"
    )
    return Failure(code, -1, "", text, where=loss.where)


def deadly_iterator(batch: int, deaths: int, loss: WorkerLoss) -> Failure:
    """The failure of a batch whose iterator ends its workers: its shard of the epoch is over."""
    advice = "The iterator gives no more in this epoch: look at what the dataset does there"
    if loss.timed_out:
        text = (
            f"batch {batch} of an iterable dataset kept its worker busy for longer than "
            f"workers.timeout_s ({loss.where}, which was ended). {advice}, or raise workers.timeout_s"
        )
        return Failure(ErrorCode.WORKER_TIMEOUT, -1, "", text, where=loss.where)
    text = (
        f"batch {batch} of an iterable dataset ended its worker {deaths} times ({loss.where}, "
        f"{loss.how}). {advice}"
    )
    return Failure(ErrorCode.WORKER_DIED, -1, "", text, where=loss.where)


def unexpected_answer(kind: str) -> Failure:
    """The failure of a batch whose worker answered with something else: a fault of loaderd's own."""
    text = f"the worker answered with {kind}, which is no answer to its task; please report this"
    return Failure(ErrorCode.SAMPLE, -1, "", text)
