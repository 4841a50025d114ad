"""What changes between two configurations, and how a Reloader takes a file that is right, wrong or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from loaderd_server.config import Config
from loaderd_server.config_file import ConfigError, parse_config, read_config
from loaderd_server.core.settings import CoreSettings
from loaderd_server.reload import Change, compare
from loaderd_server.sighup import Reloader, Source
from loaderd_server.workers.plan import DatasetPlan

TEXT = """
workers: {count: 2}
datasets:
  rows: {target: "m:Rows", args: {length: 40}}
  other: {target: "m:Other"}
streams:
  a: {dataset: rows, batch_size: 4}
  b: {dataset: rows, batch_size: 4}
  c: {dataset: other, batch_size: 4}
"""


def config(**changes: Any) -> Config:
    """A configuration of two datasets and three streams, with top-level keys replaced."""
    tree: dict[str, Any] = {
        "workers": {"count": 2},
        "datasets": {
            "rows": {"target": "m:Rows", "args": {"length": 40}},
            "other": {"target": "m:Other"},
        },
        "streams": {
            "a": {"dataset": "rows", "batch_size": 4},
            "b": {"dataset": "rows", "batch_size": 4},
            "c": {"dataset": "other", "batch_size": 4},
        },
    }
    return parse_config({**tree, **changes})


def streams(**changes: Any) -> dict[str, Any]:
    """The three streams, with some replaced, added, or (None) left out."""
    all_of_them: dict[str, Any] = {
        "a": {"dataset": "rows", "batch_size": 4},
        "b": {"dataset": "rows", "batch_size": 4},
        "c": {"dataset": "other", "batch_size": 4},
        **changes,
    }
    return {name: stream for name, stream in all_of_them.items() if stream is not None}


# --- the difference -------------------------------------------------------------------------


def test_the_same_configuration_changes_nothing() -> None:
    change = compare(config(), config())
    assert change.unchanged == ("a", "b", "c")
    assert not change.added + change.changed + change.removed
    assert not change.datasets_gone + change.datasets_new
    assert not change.kept


def test_streams_are_added_changed_and_removed_by_name() -> None:
    new = config(
        streams=streams(
            b={"dataset": "rows", "batch_size": 8}, c=None, d={"dataset": "other", "batch_size": 4}
        )
    )
    change = compare(config(), new)
    assert (change.added, change.changed) == (("d",), ("b",))
    assert (change.removed, change.unchanged) == (("c",), ("a",))
    assert not change.datasets_gone + change.datasets_new
    assert str(change) == "added: d; changed: b; removed: c; unchanged: a"


def test_a_changed_dataset_changes_its_streams_and_is_built_again() -> None:
    datasets = {
        "rows": {"target": "m:Rows", "args": {"length": 50}},
        "other": {"target": "m:Other"},
    }
    change = compare(config(), config(datasets=datasets))
    assert (change.changed, change.unchanged) == (("a", "b"), ("c",))
    assert change.datasets_gone == change.datasets_new == ("rows",)


def test_a_dataset_that_no_stream_draws_from_is_gone_though_it_is_still_defined() -> None:
    change = compare(config(), config(streams=streams(c=None)))
    assert change.datasets_gone == ("other",)
    back = compare(config(streams=streams(c=None)), config())
    assert back.datasets_new == ("other",)


def test_a_dataset_within_a_stream_goes_by_its_own_arguments() -> None:
    def inline(length: int, batch_size: int = 4) -> Config:
        dataset = {"target": "m:Rows", "args": {"length": length}}
        return config(streams=streams(d={"dataset": dataset, "batch_size": batch_size}))

    other = compare(inline(3), inline(4))
    assert other.changed == ("d",)
    assert other.datasets_gone == other.datasets_new == ("streams.d",)
    same = compare(inline(3), inline(3, batch_size=2))
    assert same.changed == ("d",)
    assert not same.datasets_gone + same.datasets_new


def test_a_mixture_changes_with_each_of_its_sources() -> None:
    sources = [{"dataset": "rows", "weight": 1}, {"dataset": "other", "weight": 2}]
    mixed = streams(a=None, b=None, mixed={"dataset": {"mixture": sources}, "batch_size": 4})
    datasets = {
        "rows": {"target": "m:Rows", "args": {"length": 50}},
        "other": {"target": "m:Other"},
    }
    change = compare(config(streams=mixed), config(streams=mixed, datasets=datasets))
    assert (change.changed, change.unchanged) == (("mixed",), ("c",))
    assert change.datasets_gone == change.datasets_new == ("streams.mixed",)


def test_settings_of_the_whole_daemon_are_kept_and_named_with_both_values() -> None:
    new = config(memory="1GiB", workers={"count": 3, "depth": 1}, python_path=["lib"])
    change = compare(config(), new)
    kept = {kept.name: (kept.running, kept.asked) for kept in change.kept}
    assert kept == {
        "memory": (2**32, 2**30),
        "workers.count": (2, 3),
        "workers.depth": (2, 1),
        "python_path": (["."], ["lib"]),
    }
    assert change.config.workers == config().workers
    assert change.config.memory == 2**32
    assert change.unchanged == ("a", "b", "c")
    text = {kept.name: str(kept) for kept in change.kept}["workers.count"]
    assert text == "workers.count stays 2; restart to apply 3"


def test_the_level_of_the_log_can_change() -> None:
    change = compare(config(), config(log_level="debug"))
    assert change.config.log_level == "debug"
    assert not change.kept


def test_what_only_fits_the_new_number_of_workers_is_refused() -> None:
    new = config(
        workers={"count": 1}, streams=streams(a={"dataset": "rows", "batch_size": 4, "slots": 3})
    )
    with pytest.raises(ConfigError) as refused:
        compare(config(), new)
    assert "workers.count stays 2; restart to apply 1" in str(refused.value)
    assert "streams.a.slots: 3 is too few" in str(refused.value)


def test_a_stream_that_is_closed_is_tried_again() -> None:
    change = compare(config(), config(), closed=["b"])
    assert (change.changed, change.unchanged) == (("b",), ("a", "c"))
    assert not change.datasets_gone


def test_a_dataset_of_closed_streams_alone_is_built_again() -> None:
    change = compare(config(), config(), closed=["c"])
    assert change.changed == ("c",)
    assert change.datasets_gone == change.datasets_new == ("other",)


# --- the file -------------------------------------------------------------------------------


class Told:
    """Stands for the daemon: notes what it is told."""

    def __init__(self) -> None:
        self.began = self.refused = 0
        self.changes: list[Change] = []
        self.plans: list[tuple[DatasetPlan, ...]] = []
        self.told = asyncio.Event()
        #: Called once, when a reading begins.
        self.meanwhile: Callable[[], None] = lambda: None

    def closed_streams(self) -> tuple[str, ...]:
        return ()

    def reload_began(self) -> None:
        self.began += 1
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def reload(
        self, change: Change, settings: CoreSettings, plans: tuple[DatasetPlan, ...]
    ) -> None:
        assert {stream.name for stream in settings.streams} == set(change.config.streams)
        self.changes.append(change)
        self.plans.append(plans)
        self.told.set()

    def reload_refused(self) -> None:
        self.refused += 1
        self.told.set()


def _put(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink()
    else:
        file.write_text(text)


async def _sighup(
    file: Path, texts: Collection[str | None], told: Told, hups: int, meanwhile: int
) -> None:
    _put(file, TEXT)
    reloader = Reloader(Source(file, file.parent, None), read_config(file), told)

    def ask_more() -> None:
        for _ in range(meanwhile):
            reloader.ask()

    told.meanwhile = ask_more
    for text in texts:
        _put(file, text)
        told.told.clear()
        for _ in range(hups):
            reloader.ask()
        await asyncio.wait_for(told.told.wait(), 10)
    while reloader._task is not None:
        await reloader._task


def sighup(file: Path, *texts: str | None, hups: int = 1, meanwhile: int = 0) -> Told:
    """What the daemon was told as the file became each text in turn (None: was removed).

    Each time ``hups`` signals come at once; while the first is read, ``meanwhile`` more.
    """

    async def run() -> Told:
        told = Told()
        await _sighup(file, texts, told, hups, meanwhile)
        return told

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file or directory"),
        ("streams: {a: [", "is not YAML"),
        ("", "holds nothing"),
        (TEXT.replace("batch_size: 4}", "batchsize: 4}"), "did you mean 'batch_size'"),
        (TEXT.replace("dataset: other", "dataset: othr"), "there is no dataset 'othr'"),
        (TEXT + "  d: {dataset: '${NOT_SET_ANYWHERE}', batch_size: 1}", "NOT_SET_ANYWHERE"),
        ("\0", "not YAML"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing_and_one_line_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, why: str
) -> None:
    told = sighup(tmp_path / "cfg.yaml", text)
    assert (told.began, told.refused, told.changes) == (1, 1, [])
    (error,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert error.startswith("reload refused: ")
    assert error.endswith("; nothing changed")
    assert why in error
    assert "\n" not in error


def test_what_is_wrong_is_forgotten_when_the_file_is_right_again(tmp_path: Path) -> None:
    right = TEXT.replace("  c: {dataset: other, batch_size: 4}\n", "")
    told = sighup(tmp_path / "cfg.yaml", "streams: 3", right)
    (change,) = told.changes
    assert change.removed == ("c",)


def test_each_change_counts_from_the_one_before(tmp_path: Path) -> None:
    one = TEXT.replace("  c: {dataset: other, batch_size: 4}\n", "")
    told = sighup(tmp_path / "cfg.yaml", one, one)
    assert [change.removed for change in told.changes] == [("c",), ()]


def test_signals_that_come_at_once_are_one(tmp_path: Path) -> None:
    assert len(sighup(tmp_path / "cfg.yaml", TEXT, hups=5).changes) == 1


def test_signals_that_come_while_it_reads_lead_to_one_more_reading(tmp_path: Path) -> None:
    assert len(sighup(tmp_path / "cfg.yaml", TEXT, meanwhile=5).changes) == 2


def test_kept_settings_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = sighup(tmp_path / "cfg.yaml", TEXT + "memory: 1GiB\n")
    assert len(told.changes) == 1
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line == f"reload: memory stays {2**32}; restart to apply {2**30}"
