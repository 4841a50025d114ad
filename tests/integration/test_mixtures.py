"""Mixtures on the real daemon: every trainer sees the order's samples, whoever makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.mixtures import plain_order
from tests.support.serving import serving
from tests.support.trainers import run, trainer

import loaderd
from loaderd_server.batching.mixing import Exhausted, MixingRules

HERE = "tests.integration.test_mixtures"
LENGTHS = [40, 25, 7]
WEIGHTS = (0.5, 0.3, 0.2)
SEED = 5


class Numbered:
    """Sample i: the source's number, i, and what the global generators of numpy and torch draw."""

    def __init__(self, number: int, length: int) -> None:
        self.number, self.length = number, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        draws = [np.random.rand(), torch.rand(()).item()]
        return torch.tensor([self.number, range(self.length)[index], *draws], dtype=torch.float64)


class Spoiled(Numbered):
    """Sample 3 cannot be read."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3:
            raise ValueError("unreadable")
        return super().__getitem__(index)


def jitter(sample: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Another column, drawn from the generator that is given."""
    return torch.cat([sample, torch.tensor([rng.random()], dtype=torch.float64)])


def numbers(*classes: str) -> str:
    sources = [
        f'{{dataset: {{target: "{HERE}:{name}", args: {{number: {number}, length: {length}}}}}, '
        f"weight: {weight}}}"
        for number, (name, length, weight) in enumerate(zip(classes, LENGTHS, WEIGHTS, strict=True))
    ]
    return f"[{', '.join(sources)}]"


def config(exhausted: str, workers: int = 2, stream: str = "", sources: str | None = None) -> str:
    chosen = sources or numbers("Numbered", "Numbered", "Numbered")
    return f"""
workers: {{count: {workers}}}
streams:
  train:
    dataset: {{mixture: {chosen}, exhausted: {exhausted}}}
    batch_size: 8
    seed: {SEED}
    transform: [{{target: "{HERE}:jitter"}}]
    {stream}
"""


def truth(exhausted: str, epoch: int) -> list[list[int]]:
    """Source and index at each position of an epoch."""
    rules = MixingRules(WEIGHTS, ("random",) * len(WEIGHTS), Exhausted(exhausted))
    return [list(drawn) for drawn in plain_order(SEED, epoch, LENGTHS, rules)]


#: Tells the source and index of all samples of two epochs, and every byte of them.
TRAINER = """
import json
with loaderd.connect("train", address=ADDRESS, timeout_s=30) as loader:
    say("connected")
    for epoch in range(2):
        rows = torch.cat([batch.clone() for batch in loader])
        say(json.dumps(rows[:, :2].int().tolist()))
        say(rows.numpy().tobytes().hex())
"""


@pytest.mark.parametrize("exhausted", ["stop", "repeat", "drop"])
def test_two_trainers_are_given_the_oracles_samples_in_the_same_bytes_by_1_and_by_3_workers(
    tmp_path: Path, exhausted: str
) -> None:
    told = []
    for workers in (1, 3):
        with serving(config(exhausted, workers), tmp_path, f"run{workers}") as daemon:
            with trainer(TRAINER, daemon.run_dir) as one, trainer(TRAINER, daemon.run_dir) as two:
                for each in (one, two):
                    each.expect("connected")
                    told.append([each.line() for _ in range(4)])
    assert all(lines == told[0] for lines in told)
    first, bytes_first, second, bytes_second = told[0]
    assert json.loads(first) == truth(exhausted, 0)
    assert json.loads(second) == truth(exhausted, 1)
    assert bytes_first != bytes_second


def test_a_sample_that_comes_again_in_an_epoch_is_drawn_another_augmentation(
    tmp_path: Path,
) -> None:
    with serving(config("repeat"), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader:
            rows = torch.cat([batch.clone() for batch in loader])
    of_the_smallest = rows[rows[:, 0] == 2]
    assert len(of_the_smallest) > LENGTHS[2]
    for column in (2, 3, 4):
        assert len(set(of_the_smallest[:, column].tolist())) == len(of_the_smallest)


def test_ranks_share_out_a_mixture_and_each_sample_comes_once(tmp_path: Path) -> None:
    rows: list[list[int]] = []
    with serving(config("drop", stream="mode: shard"), tmp_path) as daemon:
        for rank in range(2):
            with loaderd.connect(
                "train", address=daemon.run_dir, rank=rank, world_size=2, timeout_s=30
            ) as loader:
                rows += torch.cat([batch[:, :2].int() for batch in loader]).tolist()
    assert rows == truth("drop", 0)[0::2] + truth("drop", 0)[1::2]
    assert len({tuple(row) for row in rows}) == sum(LENGTHS)


RESUMING = """
import json
with loaderd.connect("train", address=ADDRESS, timeout_s=30) as loader:
    if sys.argv[2] == "begin":
        it = iter(loader)
        for _ in range(3):
            next(it)
        say(json.dumps(loader.state_dict()))
        rest = [batch.clone() for batch in it]
    else:
        loader.load_state_dict(json.loads(sys.argv[2]))
        rest = [batch.clone() for batch in loader]
    say(torch.cat(rest).numpy().tobytes().hex())
"""


def test_a_mixture_is_resumed_exactly_by_another_daemon_with_other_workers(tmp_path: Path) -> None:
    with serving(config("repeat", 1), tmp_path, "before") as daemon:
        state, rest = run(RESUMING, daemon.run_dir, "begin")
    with serving(config("repeat", 3), tmp_path, "after") as daemon:
        assert run(RESUMING, daemon.run_dir, state) == [rest]
    assert len(bytes.fromhex(rest)) == (len(truth("repeat", 0)) - 3 * 8) * 5 * 8


def test_a_state_of_another_mixture_is_refused_naming_what_differs(tmp_path: Path) -> None:
    with serving(config("repeat"), tmp_path, "before") as daemon:
        with loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader:
            next(iter(loader))
            state = loader.state_dict()
    with serving(config("drop"), tmp_path, "after") as daemon:
        with loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader:
            with pytest.raises(
                loaderd.StateMismatch, match="exhausted is 'drop' here and 'repeat'"
            ):
                loader.load_state_dict(state)


def test_an_error_tells_its_source_and_the_index_there(tmp_path: Path) -> None:
    sources = numbers("Numbered", "Spoiled", "Numbered")
    with serving(config("drop", sources=sources), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader:
            with pytest.raises(ValueError, match="unreadable") as caught:
                list(loader)
    assert f"This was sample 3 of source '{HERE}:Spoiled'." in str(caught.value)
    assert f"in sample at index {LENGTHS[0] + 3}," in str(caught.value)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("builtins:dict", "source 'builtins:dict' cannot be mixed: it is empty"),
        ("tests.integration.test_mixtures:nowhere", "has no 'nowhere'"),
    ],
)
def test_a_source_that_cannot_be_used_ends_its_stream_alone_with_the_reason(
    tmp_path: Path, target: str, says: str
) -> None:
    good = f'  good: {{dataset: {{target: "{HERE}:Numbered", args: {{number: 0, length: 4}}}}, batch_size: 4}}\n'
    text = config("stop", sources=f'[{{dataset: {{target: "{target}"}}}}]') + good
    with serving(text, tmp_path) as daemon:
        with pytest.raises(loaderd.StreamEnded, match=says):
            loaderd.connect("train", address=daemon.run_dir, timeout_s=30)
        with loaderd.connect("good", address=daemon.run_dir, timeout_s=30) as loader:
            batch: Any = next(iter(loader))
            assert len(batch) == 4
            del batch
