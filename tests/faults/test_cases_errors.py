"""Samples that kill, hang or raise: cases 8, 11 and 13, and the policies of on_error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import case_datasets
from tests.support.serving import serving
from tests.support.trainers import run

import loaderd

HEAD = "workers: {count: %d, timeout_s: %s}\n"
MODULE = "tests.support.case_datasets"


def config(
    target: str, args: dict[str, Any], *, workers: int = 2, timeout_s: float = 30, **stream: Any
) -> str:
    settings = {"dataset": "d", "batch_size": 4, "sampler": "sequential", **stream}
    return (
        HEAD % (workers, timeout_s)
        + f"datasets:\n  d: {{target: '{MODULE}:{target}', args: {args}}}\n".replace("None", "null")
        + f"streams:\n  train: {settings}\n"
    )


def outcomes(loader: loaderd.Loader) -> list[Any]:
    """Each batch as a list, or the error in its place."""
    seen: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            seen.append(next(iterator).tolist())
        except StopIteration:
            return seen
        except (Exception, case_datasets.Fundamental) as error:  # noqa: BLE001 - is compared below
            seen.append(error)


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("how", ["kill", "exit"])
def test_case_8_a_worker_killed_once_goes_unnoticed(tmp_path: Path, how: str, workers: int) -> None:
    args = {"at": 5, "how": how, "once": str(tmp_path / "once")}
    with serving(config("Killing", args, workers=workers), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert outcomes(loader) == [
                [0, 1, 2, 3],
                [4, 5, 6, 7],
                [8, 9, 10, 11],
                [12, 13, 14, 15],
            ]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("how", "says"), [("kill", "SIGKILL"), ("exit", "code 0")])
def test_case_8_a_sample_that_always_kills_is_named(
    tmp_path: Path, how: str, says: str, workers: int
) -> None:
    with serving(config("Killing", {"at": 5, "how": how}, workers=workers), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            first, error, *rest = outcomes(loader)
            assert [first, *rest] == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
            assert isinstance(error, loaderd.WorkerDied)
            assert says in str(error)
            assert "pid" in str(error)
            assert error.failure is not None
            assert error.failure.index == 5


def test_case_8_skip_goes_on_without_the_sample_that_kills(tmp_path: Path) -> None:
    with serving(config("Killing", {"at": 5, "how": "kill"}, on_error="skip"), tmp_path) as daemon:
        for _trainer in range(2):
            with loaderd.connect("train", address=daemon.run_dir) as loader:
                assert outcomes(loader) == [
                    [0, 1, 2, 3],
                    [4, 6, 7],
                    [8, 9, 10, 11],
                    [12, 13, 14, 15],
                ]


def test_a_killing_sample_in_the_very_first_batch_is_named_too(tmp_path: Path) -> None:
    with serving(config("Killing", {"at": 1, "how": "kill"}), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            error, *rest = outcomes(loader)
            assert isinstance(error, loaderd.WorkerDied)
            assert rest == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_a_sample_that_hangs_is_named_after_timeout_s(tmp_path: Path) -> None:
    text = config("Sleeping", {"at": 5, "sleep_s": 600}, timeout_s=0.5)
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            first, error, *rest = outcomes(loader)
            assert [first, *rest] == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
            assert isinstance(error, loaderd.WorkerTimeout)
            assert error.failure is not None
            assert error.failure.index == 5


def test_substitute_takes_the_next_good_position(tmp_path: Path) -> None:
    text = config("Raising", {"fault": "value"}, on_error="substitute")
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert outcomes(loader) == [[0, 1, 2, 4], [4, 5, 6, 7]]


def test_more_failures_than_the_cap_are_an_error(tmp_path: Path) -> None:
    text = config("Raising", {"fault": "value"}, on_error={"policy": "skip", "max_count": 0})
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            error, second = outcomes(loader)
            assert isinstance(error, loaderd.TooManyFailures)
            assert "max_count" in str(error)
            assert second == [4, 5, 6, 7]


REBUILT = {
    "value": ValueError,
    "key": KeyError,
    "base": case_datasets.Fundamental,
    "two": loaderd.SampleError,
    "keyword": loaderd.SampleError,
    "constructor": loaderd.SampleError,
    "stop": loaderd.SampleError,
    "exit": loaderd.SampleError,
}


@pytest.mark.parametrize("fault", sorted(REBUILT))
def test_case_11_an_exception_keeps_class_text_traceback_and_index(
    tmp_path: Path, fault: str
) -> None:
    with serving(config("Raising", {"fault": fault}), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            error, second = outcomes(loader)
    assert isinstance(error, REBUILT[fault])
    text = str(error)
    assert "Traceback" in text
    assert "__getitem__" in text
    assert "index 3" in text or "sample 3" in text
    raised = case_datasets.FAULTS[fault]()
    assert type(raised).__name__ in text
    assert str(raised) in text
    assert second == [4, 5, 6, 7]


def test_case_11_a_class_that_the_trainer_has_not_imported_is_named(tmp_path: Path) -> None:
    script = """
    loader = loaderd.connect("train", address=ADDRESS)
    try:
        next(iter(loader))
    except loaderd.SampleError as error:
        say("Fundamental" in str(error), "deep" in str(error))
    """
    with serving(config("Raising", {"fault": "base"}), tmp_path) as daemon:
        assert run(script, daemon.run_dir) == ["True True"]


def test_case_13_samples_of_different_shape_name_both_shapes_and_indices(tmp_path: Path) -> None:
    with serving(config("Shapes", {}), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            (error,) = outcomes(loader)
    text = str(error)
    assert isinstance(error, Exception)
    for part in ("'x'", "3, 4", "3, 5", "0", "2"):
        assert part in text


def test_case_5_a_batch_over_the_budget_is_its_own_error_and_the_next_is_fine(
    tmp_path: Path,
) -> None:
    text = "memory: 16MiB\n" + config(
        "Large", {"large": 8 * 1024 * 1024}, batch_size=1, slots=6, slot_bytes="1MiB"
    )
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            seen = outcomes(loader)
    error = seen.pop(8)
    assert [batch[0][0] for batch in seen] == [float(i) for i in range(16) if i != 8]
    assert isinstance(error, loaderd.BatchTooLarge)
    assert "memory" in str(error)


def test_a_larger_batch_gets_a_larger_slot_within_the_budget(tmp_path: Path) -> None:
    text = "memory: 64MiB\n" + config(
        "Large", {"large": 1024 * 1024}, batch_size=1, slots=6, slot_bytes="64KiB"
    )
    with serving(text, tmp_path) as daemon:
        for _trainer in range(2):
            with loaderd.connect("train", address=daemon.run_dir) as loader:
                seen = outcomes(loader)
            assert [batch[0][0] for batch in seen] == [float(i) for i in range(16)]
            assert len(seen[8][0]) == 1024 * 1024


def test_torch_sees_the_same_error_class_as_with_stock(tmp_path: Path) -> None:
    dataset: Any = case_datasets.Raising("value")
    stock: Any = torch.utils.data.DataLoader(dataset, batch_size=4)
    with pytest.raises(ValueError, match="plain"):
        list(stock)
    with serving(config("Raising", {"fault": "value"}), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            with pytest.raises(ValueError, match="plain"):
                list(loader)
