"""Errors of trainers that cannot go on: each says what is not as it was, and what to do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.serving import Daemon, serving, start
from tests.support.sharing import CONFIG, LENGTH, connect, cut, indices, order, take

import loaderd

MORE = """\
  listed: {dataset: rows, batch_size: 8, seed: 11, collate: "builtins:list"}
  iterated: {dataset: {target: "tests.support.case_iterables:Items"}, batch_size: 4}
"""


def replaced(daemon: Daemon, config: str, directory: Path) -> Daemon:
    """The daemon dies, and one with another configuration takes its place."""
    daemon.process.kill()
    daemon.process.wait(10)
    return start(config, directory)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (("seed: 11", "seed: 12"), loaderd.StateMismatch, "seed is 12 now and 11 before"),
        (("batch_size: 8", "batch_size: 4"), loaderd.StateMismatch, "batch_size is 4 now and 8"),
        (
            ('Rows"', 'Rows", args: {length: 99}'),
            loaderd.StateMismatch,
            "samples is 99 now and 203",
        ),
        (("  broadcast:", "  other:"), loaderd.UnknownStream, "there is no stream 'broadcast'"),
    ],
    ids=["seed", "batch size", "dataset", "name"],
)
def test_a_daemon_that_comes_back_with_another_stream_is_not_gone_on_with(
    tmp_path: Path, change: tuple[str, str], error: type[Exception], says: str
) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with connect("broadcast", daemon.run_dir, reconnect_s=60) as loader:
            reading = iter(loader)
            kept = next(reading)
            changed = CONFIG.replace(*change)
            assert changed != CONFIG
            second = replaced(daemon, changed, tmp_path)
            try:
                with pytest.raises(error, match=says):
                    list(reading)
                assert indices(kept) == cut(order())[0]
            finally:
                second.stop()
                assert second.process.stderr is not None
                second.process.stderr.close()


def test_a_place_that_the_stream_does_not_have_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with serving(CONFIG + MORE, tmp_path) as daemon:
        with connect("broadcast", daemon.run_dir, batch_size=5) as loader:
            reading = iter(loader)
            take(reading, 1)
            state = loader.state_dict()
        with connect("broadcast", daemon.run_dir) as loader:
            far = {**state, "samples": LENGTH + 30}
            loader.load_state_dict(far)
            with pytest.raises(
                (loaderd.StateMismatch, loaderd.SubscriptionRefused),
                match=rf"{LENGTH} for this trainer|the epoch has 26 batches",
            ):
                next(iter(loader))
        with connect("listed", daemon.run_dir) as loader:
            loader.load_state_dict({**state, "samples": 0})
            loader.load_state_dict(state)
            with pytest.raises(loaderd.StateMismatch, match="cannot be cut: its collate is"):
                next(iter(loader))


@pytest.mark.parametrize("copies", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_stays_in_its_process(tmp_path: Path, copies: Callable[[Any], Any]) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with connect("broadcast", daemon.run_dir) as loader:
            with pytest.raises(
                TypeError, match=r"cannot be pickled or copied.*send state_dict\(\)"
            ):
                copies(loader)


def test_nobody_knows_the_length_of_what_is_iterated(tmp_path: Path) -> None:
    with serving(CONFIG + MORE, tmp_path) as daemon:
        with connect("iterated", daemon.run_dir) as loader:
            with pytest.raises(TypeError, match="has no length: its dataset is iterable"):
                len(loader)


def test_what_is_no_state_is_told_so(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with connect("broadcast", daemon.run_dir) as loader:
            with pytest.raises(loaderd.StateMismatch, match="is neither a state nor a list"):
                loader.load_state_dict("epoch 3")  # type: ignore[arg-type]
