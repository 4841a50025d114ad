"""Trainers with batch sizes of their own read one stream together: nothing is lost or repeated."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from tests.support.serving import serving
from tests.support.sharing import BATCH, CONFIG, LENGTH, connect, cut, indices, order

import loaderd

SIZES = (7, 8, 12, 16, 24, 48)


def test_six_sizes_read_one_stream_together(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        got: dict[tuple[int, bool], list[list[int]]] = {}

        def work(size: int, drop_last: bool) -> None:
            with connect(
                "broadcast", daemon.run_dir, batch_size=size, drop_last=drop_last
            ) as loader:
                got[size, drop_last] = [indices(batch) for _ in range(2) for batch in loader]
                assert len(loader) * 2 == len(got[size, drop_last])

        ways = [(size, drop_last) for size in SIZES for drop_last in (False, True)]
        threads = [threading.Thread(target=work, args=way) for way in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    for size, drop_last in ways:
        wanted = [batch for epoch in (0, 1) for batch in cut(order(epoch), size)]
        if drop_last:
            wanted = [batch for batch in wanted if len(batch) == size]
        assert got[size, drop_last] == wanted


def test_batches_within_a_slot_are_views_and_others_copies(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with connect("broadcast", daemon.run_dir, batch_size=4) as loader:
            batches = iter(loader)
            first, second = next(batches), next(batches)
            whole = first["bits"].untyped_storage().nbytes()
            assert whole == second["bits"].untyped_storage().nbytes() == BATCH * 16 * 4
            assert loader.stats().copies == 0
        with connect("broadcast", daemon.run_dir, batch_size=12) as loader:
            batch = next(iter(loader))
            assert batch["bits"].untyped_storage().nbytes() == 12 * 16 * 4
            assert torch.equal(batch["index"], torch.tensor(order()[:12]))


def test_a_size_larger_than_the_epoch_gives_one_batch_or_none(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with connect("broadcast", daemon.run_dir, batch_size=10 * LENGTH) as loader:
            assert [indices(batch) for batch in loader] == [order()]
        with connect("broadcast", daemon.run_dir, batch_size=10 * LENGTH, drop_last=True) as loader:
            assert len(loader) == 0
            assert list(loader) == []


def test_who_cannot_cut_is_told_why(tmp_path: Path) -> None:
    text = CONFIG + '  own: {dataset: rows, batch_size: 8, collate: "builtins:list"}\n'
    with serving(text, tmp_path) as daemon:
        with pytest.raises(loaderd.SubscriptionRefused) as refused:
            connect("own", daemon.run_dir, batch_size=5)
        for part in ("its collate is the user's own", "define a stream of that batch size"):
            assert part in str(refused.value)


@pytest.mark.parametrize(
    ("dataset", "error"),
    [
        # The worker's CollateError is one here too where its module is imported: a RuntimeError.
        (
            '{target: "tests.support.case_datasets:Large", args: {length: 12}}',
            (loaderd.BatchError, RuntimeError),
        ),
        (
            '{target: "tests.support.case_datasets:Raising", args: {fault: value, length: 12, at: 4}}',
            ValueError,
        ),
    ],
    ids=["cannot be joined", "cannot be made"],
)
def test_a_state_is_behind_a_batch_that_raised(
    tmp_path: Path, dataset: str, error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    text = f"datasets:\n  d: {dataset}\nstreams:\n  s: {{dataset: d, batch_size: 2}}\n"
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("s", address=daemon.run_dir, batch_size=3) as loader:
            batches = iter(loader)
            states = [loader.state_dict()]
            raised = []
            for _ in range(4):
                try:
                    next(batches)
                except error:
                    raised.append(len(states) - 1)
                states.append(loader.state_dict())
            assert next(batches, None) is None
            counts = [(state["samples"], state["batches"]) for state in states]
            assert counts == [(0, 0), (3, 1), (6, 2), (9, 3), (12, 4)]
            assert raised
            loader.load_state_dict(states[raised[0] + 1])
            assert len(next(iter(loader))) == 3
