"""Batches of iterable datasets: torch's per worker, the same however a worker comes to them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import streams
from tests.support.making import Bench
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from loaderd_server.batching import iterables
from loaderd_server.batching.iterate import KEPT_EPOCHS, StderrNotes
from loaderd_server.batching.iterator_state import LIMIT_BYTES
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTooLarge,
    IteratorOver,
    MeasureDone,
    MeasureIterateTask,
    TaskFailed,
)
from loaderd_server.workers.plan import SamplerPlan, Target

HERE = __name__


def whole_shard(bench: Bench, **task: Any) -> list[Any]:
    """Every unit of a shard."""
    units: list[Any] = []
    while (unit := bench.unit(len(units), **task)) is not None:
        units.append(unit.tolist() if isinstance(unit, torch.Tensor) else unit)
    return units


def columns(unit: Any) -> list[list[float]]:
    return [column.tolist() for column in unit]


def failure(result: Any) -> Any:
    assert isinstance(result, TaskFailed), result
    (failed,) = result.failures
    return failed


# --- case 19: torch's batches ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_shard_has_the_batches_of_torchs_worker(shards: int, drop_last: bool) -> None:
    loader = DataLoader(streams.Sharded(), 4, num_workers=shards, drop_last=drop_last)
    expected = [batch.tolist() for batch in loader]
    for dataset in (streams.Sharded(), streams.OwnIterator(), iterables.build(streams.ten, {})):
        bench = Bench(dataset)
        ours = [
            whole_shard(bench, shard=shard, shards=shards, drop_last=drop_last)
            for shard in range(shards)
        ]
        rounds = max(map(len, ours))
        dealt = [units[n] for n in range(rounds) for units in ours if n < len(units)]
        assert dealt == expected


@pytest.mark.parametrize("drop_last", [False, True])
def test_shards_without_samples_are_over_at_once(drop_last: bool) -> None:
    bench = Bench(streams.Sharded())
    for shard in range(12):
        units = whole_shard(bench, shard=shard, shards=12, drop_last=drop_last)
        assert units == ([[shard]] if shard < 10 and not drop_last else [])


def test_the_end_is_told_with_the_number_of_units_as_often_as_asked() -> None:
    bench = Bench(streams.Sharded())
    assert len(whole_shard(bench)) == 3
    assert bench.iterate(3) == IteratorOver(1, 3)
    assert bench.iterate(7) == IteratorOver(1, 3)
    assert Bench(streams.Sharded()).iterate(9) == IteratorOver(1, 3)
    assert Bench(streams.Sharded()).iterate(2, drop_last=True) == IteratorOver(1, 2)
    assert Bench(streams.Sharded(0)).iterate(0) == IteratorOver(1, 0)
    assert Bench(streams.Sharded(8)).iterate(2) == IteratorOver(1, 2)


def test_a_dataset_sees_torchs_worker_info_while_it_runs_and_only_then() -> None:
    seen = []

    class Asking(IterableDataset[int]):
        def set_epoch(self, epoch: int) -> None:
            seen.append(get_worker_info())

        def __iter__(self) -> Iterator[int]:
            seen.append(get_worker_info())
            try:
                yield 1
                yield 2
            finally:
                seen.append(get_worker_info())

        def state_dict(self) -> dict[str, Any]:
            seen.append(get_worker_info())
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    bench = Bench(Asking())
    bench.iterate(0, shard=1, shards=3, rows=1)
    for epoch in range(1, KEPT_EPOCHS + 1):
        bench.iterate(0, epoch=epoch, rows=1)
    infos = [info for info in seen if info is not None and info.num_workers == 3]
    assert [(info.id, type(info.dataset)) for info in infos] == [(1, Asking)] * 4
    assert len({info.seed for info in seen if info is not None}) == 1 + KEPT_EPOCHS
    assert None not in seen
    assert get_worker_info() is None


# --- purity ---------------------------------------------------------------------------------


def test_interleaved_epochs_seeds_and_shards_do_not_disturb_each_other() -> None:
    tasks = [
        {"epoch": epoch, "seed": seed, "shard": shard, "shards": 2}
        for epoch, seed in ((0, 0), (1, 0), (0, 7))
        for shard in range(2)
    ]
    alone = [
        [columns(unit) for unit in whole_shard(Bench(streams.Drawing()), **task)] for task in tasks
    ]
    bench = Bench(streams.Drawing())
    together = [[columns(bench.unit(n, **task)) for task in tasks] for n in range(5)]
    assert [list(units) for units in zip(*together, strict=True)] == alone
    assert all(unit[1] == [1.0] * 4 for unit in alone[2])
    draws = [tuple(unit[3]) for units in alone for unit in units]
    assert len(set(draws)) == len(draws)


class Remembering(IterableDataset[int]):
    """Keeps what it has given in a list of its own."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def __iter__(self) -> Iterator[int]:
        while len(self.given) < 6:
            self.given.append(len(self.given))
            yield self.given[-1]


def test_each_iterator_has_its_own_copy_of_the_dataset() -> None:
    dataset = Remembering()
    bench = Bench(dataset)
    first, second = bench.unit(0, rows=2), bench.unit(0, rows=2, epoch=1)
    assert first.tolist() == second.tolist() == [0, 1]
    assert bench.unit(1, rows=2).tolist() == [2, 3]
    assert dataset.given == []


def test_transforms_have_the_samples_key_wherever_the_unit_is_made() -> None:
    stream: dict[str, Any] = {"transforms": (Target("tests.unit.batching.test_maker:noisy"),)}
    bench = Bench(streams.Sharded(), **stream)
    units = [columns(bench.unit(n, shard=1, shards=2, rows=2)) for n in range(3)]
    assert [unit[0] for unit in units] == [[1, 3], [5, 7], [9]]
    again = columns(Bench(streams.Sharded(), **stream).unit(1, shard=1, shards=2, rows=2))
    assert again == units[1]
    assert len({value for unit in units for value in unit[1]}) == 5


def test_a_users_collate_gets_the_samples_of_the_unit() -> None:
    collate = Target("tests.support.case_datasets:keep_lists")
    pairs = Bench(list_of_pairs(), collate=collate)
    assert pairs.unit(1) == [[4, 5], ["4", "5"]]


def list_of_pairs() -> Any:
    class Pairs:
        def __iter__(self) -> Iterator[tuple[int, str]]:
            return ((number, str(number)) for number in range(6))

    return Pairs()


# --- again, further, back -------------------------------------------------------------------


def test_what_did_not_fit_is_kept_for_a_larger_place() -> None:
    bench, streams.Rows.drawn = Bench(streams.Rows(), slot_bytes=4096), 0
    small = bench.slot
    large = bench.iterate(0)
    assert large == BatchTooLarge(1, 16_000)
    bench.slot = np.zeros(16_000, dtype=np.uint8)
    assert bench.unit(0)[:, 0].tolist() == [0, 1, 2, 3]
    assert bench.unit(0)[:, 0].tolist() == [0, 1, 2, 3]
    assert streams.Rows.drawn == 4
    assert bench.unit(1)[:, 0].tolist() == [4, 5, 6, 7]
    assert (small == 0xAB).all()


def test_a_unit_before_the_last_is_made_by_a_new_iterator() -> None:
    bench = Bench(streams.Drawing())
    units = [columns(bench.unit(n)) for n in range(4)]
    assert [columns(bench.unit(n)) for n in (1, 3, 0, 2)] == [units[n] for n in (1, 3, 0, 2)]


@pytest.mark.parametrize("unit", range(1, 10))
def test_a_new_worker_comes_to_a_unit_by_skipping_and_says_so(
    unit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [columns(unit) for unit in whole_shard(Bench(streams.Drawing()))]
    assert capsys.readouterr().err == ""
    assert columns(Bench(streams.Drawing()).unit(unit)) == whole[unit]
    said = capsys.readouterr().err
    assert f"shard 0 resumes at batch {unit} by skipping {4 * unit} samples" in said


@pytest.mark.parametrize("unit", [1, 2, 3])
@pytest.mark.parametrize("dataset", [streams.Stateful, streams.OwnIterator])
def test_a_new_worker_comes_to_a_unit_by_the_datasets_state(
    dataset: Any, unit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    task: dict[str, Any] = {"shard": 1, "shards": 2, "rows": 1}
    bench = Bench(dataset())
    before = [bench.iterate(n, **task) for n in range(unit)][-1]
    assert isinstance(before, BatchDone)
    resumed = Bench(dataset()).unit(unit, state=before.state, state_unit=unit, **task)
    assert resumed.tolist() == [dataset.numbered(unit * 2 + 1, drawn=1)]
    assert bench.unit(unit, **task).tolist() == [dataset.numbered(unit * 2 + 1, drawn=unit + 1)]
    said = capsys.readouterr().err
    assert f"shard 1 resumes by its state_dict of batch {unit}" in said
    assert "skipping" not in said


def test_from_a_state_it_skips_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    done = Bench(streams.Stateful()).iterate(1)
    assert isinstance(done, BatchDone)
    unit = Bench(streams.Stateful()).unit(4, state=done.state, state_unit=2)
    assert [n // 1000 for n in unit] == [16, 17, 18, 19]
    assert "resumes at batch 4 by skipping 8 samples" in capsys.readouterr().err


def test_a_state_that_is_further_than_the_unit_is_not_used() -> None:
    done = Bench(streams.Stateful()).iterate(1)
    assert isinstance(done, BatchDone)
    unit = Bench(streams.Stateful()).unit(1, state=done.state, state_unit=2)
    assert [n // 1000 for n in unit] == [4, 5, 6, 7]


def test_an_iterator_far_behind_goes_on_from_the_state() -> None:
    bench = Bench(streams.Stateful())
    done = bench.iterate(3)
    assert isinstance(done, BatchDone)
    behind = Bench(streams.Stateful())
    behind.unit(0)
    unit = behind.unit(4, state=done.state, state_unit=4)
    assert unit.tolist() == [16001, 17002, 18003, 19004]
    assert behind.unit(5, state=done.state, state_unit=4).tolist() == [
        20005, 21006, 22007, 23008,
    ]  # fmt: skip


@pytest.mark.parametrize("state", [b"\xc1", b"\x92\xa8iterator\x91\xa1x", b"\x01"])
def test_a_state_that_cannot_be_loaded_is_skipped_to(
    state: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    unit = Bench(streams.Stateful()).unit(1, state=state, state_unit=1)
    assert unit.tolist() == [4005, 5006, 6007, 7008]
    said = capsys.readouterr().err
    assert "the state of batch 1 could not be loaded" in said
    assert "by skipping 4 samples" in said


class OddState(streams.Stateful):
    """A state that cannot be kept."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def state_dict(self) -> dict[str, Any]:
        if self.kind == "raises":
            raise RuntimeError("no state today")
        return {"s": object() if self.kind == "object" else b"x" * LIMIT_BYTES}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("raises", "raised RuntimeError (no state today)"),
        ("object", "state['s'] is a builtins.object"),
        ("large", f"more than {LIMIT_BYTES}"),
    ],
)
def test_a_state_that_cannot_be_kept_is_said_once(
    kind: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(OddState(kind))
    results = [bench.iterate(n) for n in range(3)]
    assert all(isinstance(result, BatchDone) and result.state == b"" for result in results)
    said = capsys.readouterr().err
    assert says in said
    assert said.count("a resume skips instead") == 1


def test_measuring_loses_nothing_and_repeats_nothing() -> None:
    bench, streams.Rows.drawn = Bench(streams.Rows()), 0
    address = BatchAddress("train", 0, 0, 0, 0, 1)
    measured = bench.maker.do(MeasureIterateTask(1, "d", address, 0, 1, 4, False))
    assert measured == MeasureDone(1, 16_000)
    assert (bench.slot == 0xAB).all()
    assert [unit[0][0] for unit in whole_shard(bench)] == [0.0, 4.0, 8.0]
    assert streams.Rows.drawn == 10
    for dataset in (streams.Sharded(0), Ending("begin")):
        empty = Bench(dataset).maker.do(MeasureIterateTask(1, "d", address, 0, 1, 4, False))
        assert empty == MeasureDone(1, 0)


# --- failures -------------------------------------------------------------------------------


class Ending(IterableDataset[int]):
    """Ends in an odd way."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __iter__(self) -> Iterator[int]:
        if self.how == "begin":
            raise ValueError("cannot begin")
        return self._numbers()

    def _numbers(self) -> Iterator[int]:
        yield from range(5)
        if self.how == "exit":
            raise SystemExit(3)
        next(iter(()))


def test_an_iterators_exception_is_its_units_failure_and_then_it_is_over() -> None:
    bench = Bench(streams.Failing())
    assert bench.unit(0).tolist() == [0, 1, 2, 3]
    for _ in range(2):
        failed = failure(bench.iterate(1))
        assert (failed.row, failed.failure.index) == (1, 5)
        assert failed.failure.class_name == "builtins:KeyError"
        assert "__iter__" in failed.failure.traceback
        assert failed.failure.where == "worker 0, pid 1"
    assert bench.iterate(2) == IteratorOver(1, 2)
    assert bench.unit(0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("how", "class_name"), [("exit", "SystemExit"), ("stop", "RuntimeError")])
def test_no_exception_makes_an_epoch_short_in_silence(how: str, class_name: str) -> None:
    bench = Bench(Ending(how))
    assert bench.unit(0).tolist() == [0, 1, 2, 3]
    assert failure(bench.iterate(1)).failure.class_name == f"builtins:{class_name}"


def test_an_exception_before_the_unit_that_is_skipped_to_is_told_too() -> None:
    bench = Bench(streams.Failing())
    failed = failure(bench.iterate(2))
    assert (failed.row, failed.failure.index) == (-1, 5)
    assert bench.iterate(3) == IteratorOver(1, 3)


def test_an_iterator_that_cannot_begin_fails_the_unit() -> None:
    bench = Bench(Ending("begin"))
    failed = failure(bench.iterate(0))
    assert (failed.row, failed.failure.index) == (-1, -1)
    assert "cannot begin" in failed.failure.text
    assert bench.iterate(1) == IteratorOver(1, 1)


def fussy(sample: int, rng: Any) -> int:
    if sample == 5:
        raise StopIteration("a transform's")
    return sample


def fussy_collate(samples: list[int]) -> torch.Tensor:
    if 5 in samples:
        raise StopIteration("a collate's")
    return torch.tensor(samples)


@pytest.mark.parametrize(
    ("stream", "row", "index"),
    [
        ({"transforms": (Target(f"{HERE}:fussy"),)}, 1, 11),
        ({"collate": Target(f"{HERE}:fussy_collate")}, -1, -1),
    ],
)
def test_an_exception_in_transform_or_collate_fails_only_the_unit(
    stream: Any, row: int, index: int
) -> None:
    bench = Bench(UNSHARDED, **stream)
    shard: dict[str, Any] = {"shard": 1, "shards": 2}
    assert bench.unit(0, **shard).tolist() == [0, 1, 2, 3]
    for _ in range(2):
        failed = failure(bench.iterate(1, **shard))
        assert (failed.row, failed.failure.index) == (row, index)
        assert failed.failure.class_name == "builtins:StopIteration"
    assert bench.unit(2, **shard).tolist() == [8, 9]


class Unsharded:
    """Gives every shard everything."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


UNSHARDED = Unsharded()


def test_samples_that_cannot_stand_together_are_named_by_their_running_numbers() -> None:
    class Odd:
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.zeros(2 if number == 6 else 1) for number in range(8))

    failed = failure(Bench(Odd()).iterate(1))
    assert "index 4" in failed.failure.text
    assert "index 6" in failed.failure.text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"on_error": ErrorPolicy.SKIP}, "on_error: skip, but its dataset is iterable"),
        ({"on_error": ErrorPolicy.SUBSTITUTE}, "Set on_error: raise"),
        ({"sampler": SamplerPlan("subset", {"indices": [1]})}, "Leave out sampler"),
    ],
)
def test_settings_that_need_indices_are_refused(changes: Any, says: str) -> None:
    failed = failure(Bench(streams.Sharded(), **changes).iterate(0))
    assert says in failed.failure.text
    assert "stream train" in failed.failure.text


# --- generators, copies, bounds -------------------------------------------------------------


def test_a_generator_function_is_called_for_each_iterator() -> None:
    dataset = iterables.build(streams.endless, {"start": 100})
    bench = Bench(dataset)
    assert bench.unit(0, shard=1, shards=2).tolist() == [101, 103, 105, 107]
    assert bench.unit(0, shard=0, shards=2).tolist() == [100, 102, 104, 106]
    assert bench.unit(0, epoch=1).tolist() == [100, 101, 102, 103]
    assert bench.unit(1, shard=1, shards=2).tolist() == [109, 111, 113, 115]
    assert bench.unit(500).tolist() == [2100, 2101, 2102, 2103]


def test_only_the_newest_epochs_are_kept_and_generators_are_closed() -> None:
    closed = []

    class Closing:
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            try:
                yield from range(100)
            finally:
                closed.append(self.epoch)

    bench = Bench(Closing())
    for epoch in range(KEPT_EPOCHS):
        bench.unit(0, epoch=epoch)
    bench.unit(1, epoch=0)
    assert closed == []
    bench.unit(0, epoch=KEPT_EPOCHS)
    assert closed == [1]
    assert bench.unit(1, epoch=1).tolist() == [4, 5, 6, 7]
    del bench
    gc.collect()


def test_a_generator_that_will_not_close_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Clinging:
        def __iter__(self) -> Iterator[int]:
            try:
                yield from range(8)
            finally:
                raise RuntimeError("not yet")

    bench = Bench(Clinging())
    for epoch in range(KEPT_EPOCHS + 1):
        bench.unit(0, epoch=epoch)
    said = capsys.readouterr().err
    assert "closing its generator raised RuntimeError: not yet" in said
    for epoch in range(1, KEPT_EPOCHS + 1):
        bench.iterate(2, epoch=epoch)


def test_what_is_said_is_one_line_and_needs_no_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = StderrNotes("train", "worker 0, pid 1")
    notes.say("it raised\n  " + "x" * 10_000)
    said = capsys.readouterr().err
    assert said.startswith("loaderd: stream train (worker 0, pid 1): it raised xxx")
    assert (said.count("\n"), len(said) < 3_000) == (1, True)
    monkeypatch.setattr("sys.stderr", None)
    notes.say("to nobody")


def test_what_cannot_be_copied_is_shared_and_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = Bench(streams.Locked())
    assert whole_shard(bench) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert bench.unit(0, epoch=1).tolist() == [0, 1, 2, 3]
    assert capsys.readouterr().err.count("in __iter__, not in __init__") == 1


def test_its_own_iterator_that_cannot_be_copied_is_refused() -> None:
    failed = failure(Bench(streams.LockedOwn()).iterate(0))
    assert "name a generator function as the target" in failed.failure.text


def test_read_only_arrays_are_shared_by_the_copies() -> None:
    class Holding:
        def __init__(self) -> None:
            self.fixed, self.free = np.arange(3), np.arange(3)
            self.fixed.flags.writeable = False

    holding = Holding()
    copied = iterables.own_copy(holding).dataset
    assert copied.fixed is holding.fixed
    assert copied.free is not holding.free


# --- what is iterable -----------------------------------------------------------------------


class Both(IterableDataset[int]):
    """An IterableDataset with a length and items."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength(streams.Sharded):
    """Refuses to tell its length."""

    def __len__(self) -> int:
        raise TypeError("unknown")


@pytest.mark.parametrize(
    ("dataset", "expected", "length"),
    [
        (streams.Sharded(), True, None),
        (streams.IterOnly(), True, 10),
        (UNSHARDED, True, None),
        (Both(), True, 3),
        (NoLength(), True, None),
        (iterables.build(streams.endless, {}), True, None),
        (iterables.build(lambda: streams.endless(), {}), True, None),
        (list(range(3)), False, 3),
        ({0: 1}, False, 1),
        (3, False, None),
    ],
)
def test_what_is_iterable(dataset: Any, expected: bool, length: int | None) -> None:
    assert iterables.is_iterable(dataset) is expected
    assert iterables.length_of(dataset) == length


def test_a_mapped_dataset_whose_length_fails_cannot_be_built() -> None:
    class Broken:
        def __getitem__(self, index: int) -> int:
            return index

        def __len__(self) -> int:
            raise TypeError("unknown")

    with pytest.raises(TypeError, match="unknown"):
        iterables.length_of(Broken())
