"""The bytes of a batch depend on its coordinates alone: cases 17, 23 and 29, ranks and workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.case_datasets import Counting
from tests.support.serving import serving
from tests.support.trainers import run, trainer
from torch.utils.data import DistributedSampler, RandomSampler

import loaderd

MODULE = "tests.support.case_datasets"


def config(target: str, args: str = "{}", stream: str = "", workers: int = 2) -> str:
    return f"""
workers: {{count: {workers}}}
datasets: {{d: {{target: "{MODULE}:{target}", args: {args}}}}}
streams: {{train: {{dataset: d, {stream}}}}}
"""


def epochs(text: str, directory: Path, count: int = 2, **options: Any) -> list[list[torch.Tensor]]:
    with serving(text, directory) as daemon:
        with loaderd.connect("train", address=daemon.run_dir, **options) as loader:
            return [list(loader) for _epoch in range(count)]


def test_case_17_global_generators_differ_by_sample_and_epoch_not_by_worker(tmp_path: Path) -> None:
    runs = [
        epochs(config("Draws", stream="batch_size: 4, seed: 3", workers=workers), tmp_path, 2)
        for workers in (1, 2, 5)
    ]
    rows = [[torch.cat(epoch) for epoch in run_] for run_ in runs]
    for other in rows[1:]:
        assert torch.equal(other[0], rows[0][0])
        assert torch.equal(other[1], rows[0][1])
    first, second = (epoch[epoch[:, 0].argsort()] for epoch in rows[0])
    for column in (1, 2, 3):
        assert len(set(first[:, column].tolist())) == len(first)
        assert not set(first[:, column].tolist()) & set(second[:, column].tolist())


def test_case_23_the_dataset_is_built_once_for_all_epochs_and_trainers(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    script = """
    loader = loaderd.connect("train", address=ADDRESS)
    for epoch in range(3):
        say(sum(len(batch) for batch in loader))
    """
    text = config("Counting", f'{{journal: "{journal}"}}', "batch_size: 4, slot_bytes: 64KiB")
    with serving(text, tmp_path) as daemon:
        assert run(script, daemon.run_dir) == ["40"] * 3
        before = {process.pid for process in daemon.workers()}
        assert run(script, daemon.run_dir) == ["40"] * 3
        assert {process.pid for process in daemon.workers()} == before
    assert journal.read_text().count("init") == 1


def test_two_trainers_that_step_together_load_each_sample_once(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    script = """
    loader = loaderd.connect("train", address=ADDRESS)
    it = iter(loader)
    while wait() == "next":
        say(next(it)[:, 0].tolist())
    """
    text = config("Counting", f'{{journal: "{journal}"}}', "batch_size: 4, slot_bytes: 64KiB")
    with serving(text, tmp_path) as daemon:
        with trainer(script, daemon.run_dir) as a, trainer(script, daemon.run_dir) as b:
            for _batch in range(10):
                a.tell("next")
                b.tell("next")
                assert a.line() == b.line()
    loads = [line for line in journal.read_text().splitlines() if line.startswith("load")]
    assert sorted(loads) == sorted(f"load {i}" for i in range(40))


@pytest.mark.parametrize("batch_size", [6, 3])
def test_case_29_the_same_index_drawn_twice_is_augmented_twice(
    tmp_path: Path, batch_size: int
) -> None:
    stream = (
        f"batch_size: {batch_size}, sampler: {{target: '{MODULE}:DrawTwice'}},"
        f" transform: [{{target: '{MODULE}:jitter'}}]"
    )
    (rows,) = (torch.cat(e) for e in epochs(config("Indices", stream=stream), tmp_path, 1))
    assert rows[:, 0].tolist() == [2, 2, 0, 1, 2, 3]
    twice = rows[rows[:, 0] == 2][:, 1]
    assert len(set(twice.tolist())) == 3
    # The same rows whatever the batches they are cut into.
    other = stream.replace(f"batch_size: {batch_size}", f"batch_size: {9 - batch_size}")
    (again,) = (
        torch.cat(e) for e in epochs(config("Indices", stream=other, workers=1), tmp_path, 1)
    )
    assert torch.equal(rows, again)


def test_random_order_is_torchs_random_sampler(tmp_path: Path) -> None:
    got = epochs(config("Counting", stream="batch_size: 7, seed: 5, sampler: random"), tmp_path, 3)
    for epoch, batches in enumerate(got):
        generator = torch.Generator().manual_seed(5 + epoch)
        wanted = list(RandomSampler(Counting(), generator=generator))
        assert torch.cat(batches)[:, 0].int().tolist() == wanted


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 3])
def test_shard_orders_are_torchs_distributed_sampler(
    tmp_path: Path, world_size: int, drop_last: bool
) -> None:
    stream = f"mode: shard, batch_size: 4, seed: 5, drop_last: {drop_last}".lower()
    with serving(config("Counting", stream=stream), tmp_path) as daemon:
        for rank in range(world_size):
            sampler: DistributedSampler[Any] = DistributedSampler(
                Counting(),  # type: ignore[arg-type]
                num_replicas=world_size, rank=rank, seed=5, drop_last=drop_last,
            )  # fmt: skip
            with loaderd.connect(
                "train", address=daemon.run_dir, rank=rank, world_size=world_size
            ) as loader:
                for epoch in range(2):
                    sampler.set_epoch(epoch)
                    wanted = list(sampler)
                    if drop_last:
                        wanted = wanted[: len(wanted) // 4 * 4]
                    rows = torch.cat(list(loader))[:, 0].int().tolist()
                    assert rows == wanted
