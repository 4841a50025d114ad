"""Samplers, batched loaders, workers' settings, drifting trainers: on the real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import case_datasets
from tests.support.serving import Daemon, serving, start
from tests.support.trainers import ROOT, trainer
from torch.utils.data import WeightedRandomSampler

import loaderd

HERE = "tests.integration.test_features"


class Batched(case_datasets.Indices):
    """Makes whole batches, with the collate it is given."""

    def batch_load(self, indices: Sequence[int], collate: Callable[[Any], Any]) -> Any:
        return {"batch": collate(list(indices)), "by": "batch_load"}


class AtOnce(case_datasets.Indices):
    """Gives samples in one call, and a collate of its own."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]

    def _get_collate_fn(self) -> Callable[[Any], Any]:
        return lambda samples: (torch.tensor(samples), "own")


class Growing(case_datasets.Indices):
    """Keeps two MiB more with each sample, and tells its process."""

    kept: list[bytes] = []  # noqa: RUF012 - the leak that max_rss is for

    def __getitem__(self, index: int) -> int:
        self.kept.append(b"x" * (2 << 20))
        time.sleep(0.005)  # a load that takes its time
        return os.getpid()


class WithLock(case_datasets.Indices):
    """Takes a lock that a thread of the building process holds while the first workers start."""

    def __init__(self) -> None:
        super().__init__(8)
        self.lock = threading.Lock()
        held = threading.Event()
        threading.Thread(target=self._hold, args=(held,)).start()
        held.wait()

    def _hold(self, held: threading.Event) -> None:
        with self.lock:
            held.set()
            time.sleep(1.5)

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return index


def evens_then_odds(dataset: Any, *, seed: int, epoch: int) -> list[int]:
    return [*range(epoch, len(dataset), 2)]


def growing_batches(dataset: Any, *, seed: int, epoch: int) -> list[list[int]]:
    return [[0], [1, 2], [3, 4, 5]]


def note_worker(number: int) -> None:
    os.environ["NOTED"] = str(number)


class Noted(case_datasets.Indices):
    """Tells whether worker_init has run in this process."""

    def __getitem__(self, index: int) -> Any:
        return f"{'NOTED' in os.environ} {torch.get_num_threads()} {os.nice(0)}"


def config(target: str, stream: str, args: str = "{}", workers: str = "{count: 2}") -> str:
    name = target if ":" in target else f"{HERE}:{target}"
    return f"""
workers: {workers}
datasets: {{d: {{target: "{name}", args: {args}}}}}
streams: {{train: {{dataset: d, {stream}}}}}
"""


COUNTING = "tests.support.case_datasets:Counting"


def epoch_of(daemon: Daemon, **options: Any) -> list[Any]:
    with loaderd.connect("train", address=daemon.run_dir, timeout_s=30, **options) as loader:
        return list(loader)


def test_batch_load_makes_whole_batches(tmp_path: Path) -> None:
    with serving(
        config("Batched", "batch_size: 3, sampler: sequential", "{length: 7}"), tmp_path
    ) as daemon:
        batches = epoch_of(daemon)
    assert [batch["batch"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert {batch["by"] for batch in batches} == {"batch_load"}


def test_getitems_and_the_datasets_own_collate_are_used(tmp_path: Path) -> None:
    with serving(config("AtOnce", "batch_size: 2, sampler: sequential"), tmp_path) as daemon:
        batches = epoch_of(daemon)
    assert [(values.tolist(), own) for values, own in batches] == [
        ([0, 10], "own"),
        ([20, 30], "own"),
    ]


def test_a_users_sampler_decides_the_order_of_each_epoch(tmp_path: Path) -> None:
    stream = f"batch_size: 2, sampler: {{target: '{HERE}:evens_then_odds'}}"
    with serving(config("tests.support.case_datasets:Indices", stream), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert [torch.cat(list(loader)).tolist() for _ in range(2)] == [[0, 2], [1, 3]]


def test_a_batch_sampler_cuts_the_batches(tmp_path: Path) -> None:
    stream = f"sampler: {{batch_target: '{HERE}:growing_batches'}}"
    text = config("tests.support.case_datasets:Indices", stream, "{length: 6}")
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert len(loader) == 3
            assert [b.tolist() for b in loader] == [[0], [1, 2], [3, 4, 5]]


def test_weighted_and_subset_samplers_are_torchs(tmp_path: Path) -> None:
    text = """
datasets: {d: {target: "tests.support.case_datasets:Indices", args: {length: 5}}}
streams:
  weighted: {dataset: d, batch_size: 9, seed: 3, sampler: {weighted: {weights: [1, 2, 3, 4, 5], num_samples: 9}}}
  subset: {dataset: d, batch_size: 9, sampler: {subset: {indices: [4, 1], shuffle: false}}}
"""
    generator = torch.Generator().manual_seed(3)
    wanted = list(WeightedRandomSampler([1.0, 2, 3, 4, 5], 9, generator=generator))
    with serving(text, tmp_path) as daemon:
        for name, indices in (("weighted", wanted), ("subset", [4, 1])):
            with loaderd.connect(name, address=daemon.run_dir) as loader:
                assert next(iter(loader)).tolist() == indices


def test_a_worker_that_grows_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    text = config("Growing", "batch_size: 4", "{length: 200}", "{count: 1, max_rss: 64MiB}")
    with serving(text, tmp_path) as daemon:
        batches = epoch_of(daemon)
        assert sum(len(batch) for batch in batches) == 200
        assert len(set(torch.cat(batches).tolist())) > 1
        assert "max_rss" in daemon.wait_for("max_rss")


def test_workers_are_initialised_single_threaded_and_as_nice_as_asked(tmp_path: Path) -> None:
    workers = f'{{count: 2, niceness: 3, affinity: numa, worker_init: "{HERE}:note_worker"}}'
    with serving(config("Noted", "batch_size: 4", "{length: 8}", workers), tmp_path) as daemon:
        assert {text for batch in epoch_of(daemon) for text in batch} == {"True 1 3"}


def test_a_worker_init_that_raises_is_an_error_that_says_so(tmp_path: Path) -> None:
    workers = '{count: 1, worker_init: "builtins:int.no_such"}'
    text = config(COUNTING, "batch_size: 4, slot_bytes: 64KiB", "{}", workers)
    daemon = start(text, tmp_path)
    assert daemon.process.wait(60) != 0
    assert "no_such" in daemon.text()
    assert daemon.process.stderr is not None
    daemon.process.stderr.close()


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_case_12_a_lock_held_while_workers_start_hangs_nobody(
    tmp_path: Path, start_method: str
) -> None:
    """A forked worker inherits the lock as it is held: it is replaced after timeout_s."""
    workers = f"{{count: 2, timeout_s: 2, start_method: {start_method}}}"
    text = config("WithLock", "batch_size: 4, sampler: sequential", "{}", workers)
    with serving(text, tmp_path) as daemon:
        assert torch.cat(epoch_of(daemon)).tolist() == list(range(8))
        assert "workers.start_method: spawn" in daemon.text() or start_method == "spawn"


STEPPING = """
import time
loader = loaderd.connect("train", address=ADDRESS)
it = iter(loader)
while (order := wait()) != "end":
    began = time.monotonic()
    for _ in range(int(order)):
        last = int(next(it)[0, 0])
    say(last, time.monotonic() - began)
"""


def test_a_trainer_that_stops_delays_nobody_and_goes_on_where_it_was(tmp_path: Path) -> None:
    text = config(COUNTING, "batch_size: 4, sampler: sequential, slots: 20", "{length: 800}")
    with serving(text, tmp_path) as daemon:
        with trainer(STEPPING, daemon.run_dir) as slow, trainer(STEPPING, daemon.run_dir) as fast:
            slow.tell("2")
            assert slow.line().split()[0] == "4"
            slow.process.send_signal(signal.SIGSTOP)
            fast.tell("150")
            last, took = fast.line().split()
            assert last == "596"
            assert float(took) < 30
            slow.process.send_signal(signal.SIGCONT)
            slow.tell("100")
            assert slow.line().split()[0] == "404"  # made again: far outside the window
            fast.tell("50")
            assert fast.line().split()[0] == "796"


def test_a_late_joiner_starts_at_the_beginning_with_the_same_bytes(tmp_path: Path) -> None:
    text = config("tests.support.case_datasets:Draws", "batch_size: 4, slots: 10", "{length: 200}")
    with serving(text, tmp_path) as daemon:
        first = torch.cat(epoch_of(daemon))
        assert torch.equal(torch.cat(epoch_of(daemon)), first)


def test_iterators_of_one_loader_are_independent(tmp_path: Path) -> None:
    text = config(COUNTING, "batch_size: 4, sampler: sequential", "{length: 40}")
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader:
            for left, right in zip(loader, loader, strict=True):
                assert torch.equal(left, right)
            loader.set_epoch(0)
            pairs = [(int(a[0, 0]), int(b[0, 0])) for a in loader for b in loader]
            assert pairs == [(a * 4, b * 4) for a in range(10) for b in range(10)]
            del left, right
            for _abandoned in range(50):
                next(iter(loader))
            assert [int(batch[0, 0]) for batch in loader] == list(range(0, 40, 4))
        deadline = time.monotonic() + 10
        while _held(daemon) and time.monotonic() < deadline:
            pass
        assert _held(daemon) == 0


def _held(daemon: Daemon) -> int:
    shown = subprocess.run(
        [sys.executable, "-m", "loaderd_server", "status", "--json",
         "--address", str(daemon.run_dir)],
        capture_output=True, text=True, timeout=30, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return int(json.loads(shown.stdout)["streams"][0]["slots_held"])


@pytest.mark.parametrize("trainers", [1, 6])
def test_many_trainers_with_the_fewest_slots_all_finish_or_are_told(
    tmp_path: Path, trainers: int
) -> None:
    text = config(COUNTING, "batch_size: 4, sampler: sequential, slots: 8", "{length: 80}")
    with serving(text, tmp_path) as daemon:
        loaders: list[loaderd.Loader] = []
        for _trainer in range(trainers):
            if len(loaders) < 8 - 2 - 1:
                loaders.append(loaderd.connect("train", address=daemon.run_dir, timeout_s=30))
                continue
            with pytest.raises(loaderd.SubscriptionRefused, match="slots"):
                loaderd.connect("train", address=daemon.run_dir, timeout_s=30)
        iterators = [iter(loader) for loader in loaders]
        for batch in range(20):
            for iterator in iterators:
                assert int(next(iterator)[0, 0]) == batch * 4
        for loader in loaders:
            loader.close()
