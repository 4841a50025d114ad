"""Failed batches as exceptions, ranks from where training scripts have them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch.distributed
from tests.support import case_datasets

from loaderd import ranks
from loaderd.failures import exception_of
from loaderd.stats import Meter
from loaderd_protocol.errors import (
    BatchTooLarge,
    ErrorCode,
    Failure,
    SampleError,
    TooManyFailures,
    WorkerDied,
    WorkerTimeout,
)

BASE = Failure(ErrorCode.SAMPLE, 3, "builtins:ValueError", "bad", "Traceback: there", "worker 2")


def error(**changes: Any) -> BaseException:
    return exception_of(dataclasses.replace(BASE, **changes), 1, 7)


@pytest.mark.parametrize(
    "name", ["ValueError", "KeyError", "OSError", "UnicodeError", "MemoryError"]
)
def test_a_known_class_is_rebuilt_with_the_whole_text(name: str) -> None:
    raised = error(class_name=f"builtins:{name}")
    assert type(raised).__name__ == name
    for part in ("bad", name, "index 3", "batch 7 of epoch 1", "worker 2", "Traceback: there"):
        assert part in str(raised)
    assert "\\n" not in str(raised)
    assert raised.failure.index == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "class_name",
    [
        "builtins:StopIteration", "builtins:KeyboardInterrupt", "builtins:SystemExit",
        "builtins:GeneratorExit", "builtins:StopAsyncIteration", "builtins:UnicodeDecodeError",
        "no.such.module:Error", "builtins:NoSuch", "builtins:int", "os:system", "builtins:print",
        "", ":", "builtins:",
        f"{case_datasets.__name__}:TwoArguments", f"{case_datasets.__name__}:KeywordOnly",
        f"{case_datasets.__name__}:RaisingConstructor",
    ],
)  # fmt: skip
def test_what_cannot_or_must_not_be_rebuilt_is_a_sample_error_with_the_name(
    class_name: str,
) -> None:
    raised = error(class_name=class_name)
    assert type(raised) is SampleError
    assert class_name.rpartition(":")[2] in str(raised)


def test_a_users_own_base_exception_is_rebuilt() -> None:
    name = f"{case_datasets.__name__}:Fundamental"
    assert type(error(class_name=name)) is case_datasets.Fundamental


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.WORKER_DIED, WorkerDied),
        (ErrorCode.WORKER_TIMEOUT, WorkerTimeout),
        (ErrorCode.TOO_LARGE, BatchTooLarge),
        (ErrorCode.TOO_MANY_FAILURES, TooManyFailures),
    ],
)
def test_codes_have_classes(code: ErrorCode, kind: type[Exception]) -> None:
    assert type(error(code=code, class_name="")) is kind


def test_ranks_are_given_or_torchruns_or_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert ranks.resolve(None, None) == (0, 1)
    assert ranks.resolve(1, 4) == (1, 4)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert ranks.resolve(None, None) == (3, 8)
    assert ranks.resolve(5, None) == (5, 8)
    with pytest.raises(ValueError, match=r"rank 9 is not one of 8 \(0 to 7\)"):
        ranks.resolve(9, None)


def test_ranks_are_torch_distributeds_where_that_is_initialised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    assert ranks.resolve(None, None) == (2, 4)


def test_waiting_is_measured_between_first_and_last_batch() -> None:
    meter = Meter()
    assert meter.read().wait_share == 0
    meter.delivered(0.0, 5.0, 4)
    meter.delivered(6.0, 7.0, 4)
    meter.delivered(8.0, 9.0, 2)
    stats = meter.read()
    assert (stats.batches, stats.samples) == (3, 10)
    assert (stats.wait_s, stats.wait_share, stats.mean_batch_s) == (2.0, 0.5, 2.0)
