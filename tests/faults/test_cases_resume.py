"""Case 20 and its kind: states taken anywhere, loaded anywhere, and states that do not fit."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.support.case_datasets import Failing
from tests.support.serving import Daemon, serving

import loaderd
from loaderd_protocol.errors import StateMismatch

LENGTH, BATCH, SEED = 61, 8, 11
#: Name of a stream: its mode, and how it treats the samples that fail.
MODES = {
    "broadcast": "mode: broadcast",
    "shard": "mode: shard",
    "independent": "mode: independent",
    "wait": "mode: broadcast, lag: wait, patience_s: 60",
    "queue": "mode: queue",
}
ONE_CURSOR_EACH = ["broadcast", "shard", "independent", "wait"]
POLICIES = ["raise", "skip", "substitute"]

STREAMS = "".join(
    f"  {mode}-{policy}: {{dataset: {'rows' if policy == 'raise' else 'failing'}, {settings}, "
    f"batch_size: {BATCH}, seed: {SEED}, on_error: {policy}}}\n"
    for mode, settings in MODES.items()
    for policy in POLICIES
)
CONFIG = """
workers: {{count: {workers}}}
memory: 256MiB
datasets:
  rows: {{target: "tests.support.case_datasets:Failing", args: {{length: 61, at: []}}}}
  failing: {{target: "tests.support.case_datasets:Failing", args: {{length: 61}}}}
streams:
""".replace("61", str(LENGTH))
#: Streams that a state of "shard-raise" does not fit, each by what it is named for.
OTHERS = """\
  seed: {dataset: rows, mode: shard, batch_size: 8, seed: 12}
  sampler: {dataset: rows, mode: shard, batch_size: 8, seed: 11, sampler: sequential}
  mode: {dataset: rows, batch_size: 8, seed: 11}
  samples: {dataset: longer, mode: shard, batch_size: 8, seed: 11}
  args: {dataset: {target: "tests.support.case_datasets:Failing", args: {length: 61, at: [1]}},
         mode: shard, batch_size: 8, seed: 11}
"""
LONGER = 'longer: {target: "tests.support.case_datasets:Failing", args: {length: 62, at: []}}'


class Daemons(NamedTuple):
    """Two that serve the same streams with different numbers of workers."""

    one: Daemon
    two: Daemon


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemons]:
    directory = tmp_path_factory.mktemp("resume")
    with (
        serving(CONFIG.format(workers=2) + STREAMS, directory, "one") as one,
        serving(CONFIG.format(workers=1) + STREAMS, directory, "two") as two,
    ):
        yield Daemons(one, two)


def connect(daemon: Daemon, stream: str, **arguments: Any) -> loaderd.Loader:
    return loaderd.connect(stream, address=daemon.run_dir, timeout_s=60, **arguments)


def indices(batch: torch.Tensor) -> list[int]:
    assert torch.equal(batch, batch[:, :1].expand_as(batch))
    return [int(index) for index in batch[:, 0]]


def take(batches: Iterator[torch.Tensor], count: int) -> list[list[int]]:
    return [indices(batch) for batch in itertools.islice(batches, count)]


def read(loader: loaderd.Loader) -> list[list[int]]:
    return [indices(batch) for batch in loader]


def carried(state: dict[str, Any], way: int) -> dict[str, Any]:
    """A state after a journey through a file, of one kind or the other."""
    if way % 2:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        loaded: dict[str, Any] = torch.load(file, weights_only=True)
    else:
        loaded = json.loads(json.dumps(state))
    assert loaded == state
    return loaded


# --- the oracle: a plain loop ---------------------------------------------------------------


def order(epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(SEED + epoch)
    return torch.randperm(LENGTH, generator=generator).tolist()


def dealt(units: list[int], rank: int, world_size: int) -> list[int]:
    """A rank's share, as DistributedSampler deals: the last ones padded with the first."""
    each = -(-len(units) // world_size)
    return [units[(rank + turn * world_size) % len(units)] for turn in range(each)]


def batches_of(
    in_order: list[int], size: int, drop_last: bool, policy: str = "raise"
) -> list[list[int]]:
    bad = set() if policy == "raise" else set(Failing(LENGTH).at)
    cuts = [range(a, min(a + size, len(in_order))) for a in range(0, len(in_order), size)]
    if drop_last and len(cuts[-1]) < size:
        cuts.pop()
    if policy == "substitute":
        around = in_order * 2
        rows = [next(i for i in around[place:] if i not in bad) for place in range(len(in_order))]
        return [[rows[place] for place in cut] for cut in cuts]
    kept = [[in_order[place] for place in cut if in_order[place] not in bad] for cut in cuts]
    return [batch for batch in kept if batch]


# --- case 20 --------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True], ids=["all", "drop_last"])
@pytest.mark.parametrize("size", [None, 7, 48])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ONE_CURSOR_EACH)
def test_case_20_stopped_after_any_batch_and_resumed_twice_nothing_differs(
    daemons: Daemons, mode: str, policy: str, size: int | None, drop_last: bool
) -> None:
    stream = f"{mode}-{policy}"
    arguments: dict[str, Any] = {"batch_size": size, "drop_last": drop_last}
    if mode == "shard":
        arguments |= {"rank": 1, "world_size": 2}
    with connect(daemons.one, stream, **arguments) as loader:
        uninterrupted = [read(loader) for _epoch in range(2)]
    if mode != "independent":  # its order is loaderd's own
        for epoch, seen in enumerate(uninterrupted):
            own = dealt(order(epoch), 1, 2) if mode == "shard" else order(epoch)
            assert seen == batches_of(own, size or BATCH, drop_last, policy)
    this, following = uninterrupted
    with connect(daemons.two, stream, **arguments) as other:
        meanwhile = iter(other)
        seen = take(meanwhile, 1)
        for count in range(len(this) + 1):
            with connect(daemons.one, stream, **arguments) as first:
                given = take(iter(first), count)
                state = carried(first.state_dict(), count)
            with connect(daemons.two, stream, prefetch=0, **arguments) as second:
                second.load_state_dict(state)
                assert second.state_dict() == state
                given += take(iter(second), min(2, len(this) - count))
                state = carried(second.state_dict(), count + 1)
            with connect(daemons.one, stream, prefetch=5, **arguments) as third:
                third.load_state_dict(state)
                given += read(third)
                assert given == this
                assert read(third) == following
            if len(seen) < len(this):
                seen += take(meanwhile, 1)
        assert seen == this


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_case_20_of_a_queue_what_was_given_before_is_not_given_again(
    daemons: Daemons, policy: str
) -> None:
    stream = f"queue-{policy}"
    for count in range(8):
        epoch = 2 * count
        wanted = sorted(batches_of(order(epoch), BATCH, False, policy))
        start = (epoch, 0)
        with (
            connect(daemons.one, stream, start=start) as one,
            connect(daemons.one, stream, start=start) as other,
        ):
            given = take(iter(one), count) + take(iter(other), (len(wanted) - count) // 2)
            states = [carried(loader.state_dict(), count) for loader in (one, other)]
        with connect(daemons.two, stream, prefetch=count) as last:
            last.load_state_dict(states)
            assert sorted(given + read(last)) == wanted
            following = sorted(batches_of(order(epoch + 1), BATCH, False, policy))
            assert sorted(read(last)) == following


# --- other world sizes ----------------------------------------------------------------------


@pytest.mark.parametrize("counts", [(1, 3, 0, 2), (2, 2, 2, 2)], ids=["unequal", "equal"])
@pytest.mark.parametrize("size", [3, 5])
def test_case_20_from_4_ranks_to_3_to_2_each_is_dealt_the_rest(
    daemons: Daemons, counts: tuple[int, ...], size: int
) -> None:
    """From all states where the ranks' counts differ, from one where they are equal."""
    is_equal = len(set(counts)) == 1
    left = order(0)
    states: list[dict[str, Any]] = []
    given: list[int] = []
    for world_size in (4, 3, 2):
        shares = [dealt(left, rank, world_size) for rank in range(world_size)]
        loaded, states = states, []
        for rank in range(world_size):
            arguments = {"rank": rank, "world_size": world_size, "batch_size": size}
            daemon = daemons.two if world_size == 3 else daemons.one
            with connect(daemon, "shard-raise", **arguments) as loader:
                if loaded:
                    loader.load_state_dict(loaded[:1] if is_equal else loaded)
                batches = take(iter(loader), counts[rank] if world_size > 2 else LENGTH)
                states.append(carried(loader.state_dict(), rank))
            read_now = [index for batch in batches for index in batch]
            assert read_now == shares[rank][: len(read_now)]
            given += read_now
        left = [index for index in left if index not in given]
        assert set(given) | set(left) == set(range(LENGTH))
    assert not left
    assert len(given) - LENGTH <= 3 + 2 + 1  # each dealing's padding


# --- states that do not fit -----------------------------------------------------------------


def test_a_state_that_does_not_fit_names_each_difference(tmp_path: Path) -> None:
    config = CONFIG.format(workers=1).replace("streams:", f"  {LONGER}\nstreams:")
    config += STREAMS.splitlines(keepends=True)[3] + OTHERS
    with serving(config, tmp_path) as daemon:
        with connect(daemon, "shard-raise", rank=0, world_size=1) as loader:
            take(iter(loader), 2)
            state = loader.state_dict()
        says = {
            "seed": ["seed is 12 here and 11 in the state"],
            "sampler": ["sampler is 'sequential' here and 'random' in the state"],
            "mode": ["mode is 'broadcast' here and 'shard' in the state"],
            "samples": [f"samples is {LENGTH + 1} here and {LENGTH} in the state", "args"],
            "args": ["args is", "[1]"],
        }
        for stream, parts in says.items():
            with connect(daemon, stream, rank=0, world_size=1) as loader:
                with pytest.raises(StateMismatch) as caught:
                    loader.load_state_dict(state)
                for part in parts:
                    assert part in str(caught.value), stream
                assert len(take(iter(loader), 1)) == 1  # as if it had not been tried


def test_a_state_behind_the_end_of_the_epoch_is_refused_by_the_numbers(daemons: Daemons) -> None:
    with connect(daemons.one, "broadcast-raise", batch_size=7) as loader:
        state = {**loader.state_dict(), "samples": LENGTH + 7}
        loader.load_state_dict(state)
        with pytest.raises(StateMismatch, match=f"behind sample 68 of epoch 0.* it has {LENGTH}"):
            next(iter(loader))
