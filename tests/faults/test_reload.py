"""SIGHUP on a real daemon: what goes on untouched, what ends with words, what comes, what is given back."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.support.case_datasets import Counting
from tests.support.serving import Daemon, serving
from tests.support.trainers import trainer

import loaderd
from loaderd_protocol.address import resolve
from loaderd_protocol.errors import LoaderdError, StreamEnded, UnknownStream
from loaderd_server.cli.status import ask

HERE = "tests.faults.test_reload"
DEADLINE_S = 20.0

ROWS = 'rows: {target: "tests.support.case_datasets:Counting", args: {length: 40}}'
DRAWS = 'draws: {target: "tests.support.case_datasets:Draws", args: {length: 48}}'
STUCK = 'stuck: {target: "tests.support.case_datasets:Sleeping", args: {at: 0, sleep_s: 600}}'
JITTER = '[{target: "tests.support.case_datasets:jitter"}]'


class NeedsFile(Counting):
    """Cannot be built before its file is there."""

    def __init__(self, file: str) -> None:
        if not Path(file).exists():
            raise FileNotFoundError(f"{file} is not there yet")
        super().__init__()


def config(*streams: str, datasets: str = ROWS, more: str = "workers: {count: 2}") -> str:
    """A configuration in text."""
    lines = [more, "datasets:", *(f"  {line}" for line in datasets.splitlines()), "streams:"]
    return "\n".join([*lines, *(f"  {stream}" for stream in streams)])


def sighup(daemon: Daemon, text: str | None) -> str:
    """Puts another configuration in place (None: takes it away) and signals; what the log says of it."""
    file = daemon.run_dir.with_suffix(".yaml")
    file.unlink() if text is None else file.write_text(text)
    daemon.text()
    since = len(daemon.log)
    daemon.process.send_signal(signal.SIGHUP)
    line = daemon.wait_for("reloaded|reload refused", since=since)
    if "refused" not in line:
        daemon.wait_for("ready at", since=since)
    return line


def until(condition: Callable[[], object], what: str) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:g} s"
        threading.Event().wait(0.02)


def status(daemon: Daemon) -> dict[str, Any]:
    """``loaderd status --json``."""
    document: dict[str, Any] = json.loads(ask(resolve(str(daemon.run_dir))))
    return document


def pids(daemon: Daemon, role: str) -> set[int]:
    """Pids of the daemon's processes whose title begins so."""
    found = set()
    for process in daemon.workers():
        with suppress(psutil.Error, IndexError):
            if process.cmdline()[0].startswith(f"loaderd: {role}"):
                found.add(process.pid)
    return found


def arena_blocks(loader: Any) -> list[int]:
    """How much memory each arena takes that the trainer was sent, in blocks."""
    return [os.fstat(descriptor).st_blocks for descriptor, _ in loader._connection._arenas.values()]


def rest_of(iterator: Any) -> tuple[int, str]:
    """How many batches still come of a stream that ends, and with which words it ends."""
    batches: list[int] = []
    with pytest.raises(StreamEnded) as ended:
        batches.extend(len(batch) for batch in iterator)
    return len(batches), str(ended.value)


# --- streams that did not change ------------------------------------------------------------


def test_a_stream_that_did_not_change_goes_on_through_five_reloads_byte_for_byte(
    tmp_path: Path,
) -> None:
    datasets = f"{ROWS}\n{DRAWS}"
    train = f"train: {{dataset: draws, batch_size: 4, seed: 3, transform: {JITTER}}}"

    def text(step: int) -> str:
        return config(
            train,
            f"other: {{dataset: draws, batch_size: {step + 1}}}",
            f"more{step}: {{dataset: rows, batch_size: 4}}",
            datasets=datasets,
        )

    with (
        serving(text(0), tmp_path, "oracle") as daemon,
        loaderd.connect("train", address=daemon.run_dir) as loader,
    ):
        oracle = [batch.clone() for _epoch in range(2) for batch in loader]
    with serving(text(0), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            given = []
            kept = None
            for _epoch in range(2):
                for batch in loader:
                    given.append(batch.clone())
                    if len(given) % 4 == 0 and len(given) <= 20:
                        assert "unchanged: train" in sighup(daemon, text(len(given) // 4))
                    if len(given) == 2:
                        kept = pids(daemon, "zygote draws") | pids(daemon, "worker 1 draws")
        assert len(given) == len(oracle) == 24
        assert all(torch.equal(*pair) for pair in zip(given, oracle, strict=True))
        assert kept
        assert kept <= pids(daemon, "")


def test_a_reload_that_changes_nothing_says_so_and_touches_nothing(tmp_path: Path) -> None:
    text = config("train: {dataset: rows, batch_size: 4}")
    with serving(text, tmp_path) as daemon:
        before = pids(daemon, "")
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            iterator = iter(loader)
            next(iterator)
            line = sighup(daemon, text)
            assert line.rstrip().endswith(
                "streams added: none; changed: none; removed: none; unchanged: train"
            )
            assert len(list(iterator)) == 9
        assert before <= pids(daemon, "")


def test_a_terminal_that_ends_leaves_zygotes_and_workers_alone(tmp_path: Path) -> None:
    with serving(config("train: {dataset: rows, batch_size: 4}"), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            list(loader)
        before = pids(daemon, "")
        assert len(before) >= 2
        os.killpg(daemon.pid, signal.SIGHUP)  # as the kernel does to a terminal's processes
        daemon.wait_for("reloaded")
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 10
        assert pids(daemon, "") == before


# --- streams that end -----------------------------------------------------------------------


def test_a_removed_stream_ends_with_words_and_a_batch_in_hand_keeps_its_values(
    tmp_path: Path,
) -> None:
    kept = "kept: {dataset: rows, batch_size: 4}"
    text = config("gone: {dataset: rows, batch_size: 4, sampler: sequential}", kept)
    with serving(text, tmp_path) as daemon:
        loader = loaderd.connect("gone", address=daemon.run_dir)
        iterator = iter(loader)
        held = next(iterator)
        before = status(daemon)["memory"]["arena_bytes"]
        sighup(daemon, config(kept))
        count, words = rest_of(iterator)
        assert count <= 9
        assert "'gone' ended: it was removed by a reload of the configuration" in words
        assert status(daemon)["memory"]["arena_bytes"] == before
        assert held[:, 0].tolist() == [0, 1, 2, 3]
        assert 0 not in arena_blocks(loader)
        del held
        until(
            lambda: status(daemon)["memory"]["arena_bytes"] == before // 2,
            "the arena's bytes are given back",
        )
        until(lambda: arena_blocks(loader).count(0) == 1, "its memory is the system's again")
        loader.close()
        with pytest.raises(UnknownStream, match="'kept'"):
            loaderd.connect("gone", address=daemon.run_dir)
        with loaderd.connect("kept", address=daemon.run_dir) as loader:
            assert len(loader._connection._arenas) == 1
            assert len(list(loader)) == 10


def test_a_changed_stream_ends_with_words_and_who_connects_again_gets_the_new_batches(
    tmp_path: Path,
) -> None:
    def text(batch_size: int) -> str:
        return config(
            f"train: {{dataset: rows, batch_size: {batch_size}, sampler: sequential}}",
            more="workers: {count: 1}",
        )

    with serving(text(4), tmp_path) as daemon:
        loader = loaderd.connect("train", address=daemon.run_dir)
        iterator = iter(loader)
        held = next(iterator)
        before = pids(daemon, "")
        assert "changed: train" in sighup(daemon, text(5))
        _count, words = rest_of(iterator)
        assert "changed by a reload of the configuration" in words
        assert "Connect again" in words
        with loaderd.connect("train", address=daemon.run_dir) as again:
            rows = [batch[:, 0].tolist() for batch in again]
        assert rows == [list(range(first, first + 5)) for first in range(0, 40, 5)]
        assert held[:, 0].tolist() == [0, 1, 2, 3]
        with pytest.raises(StreamEnded, match="Connect again"):  # asked once more, told once more
            next(iterator)
        assert pids(daemon, "") == before  # its dataset stayed: no process was started again
        loader.close()


def test_a_loader_that_was_between_epochs_learns_of_the_end_by_its_next_epoch(
    tmp_path: Path,
) -> None:
    text = config("train: {dataset: rows, batch_size: 4}")
    with serving(text, tmp_path) as daemon:
        loader = loaderd.connect("train", address=daemon.run_dir, timeout_s=DEADLINE_S)
        assert len(list(loader)) == 10
        sighup(daemon, text.replace("batch_size: 4", "batch_size: 5"))
        for _ in range(2):
            with pytest.raises(StreamEnded, match="changed by a reload"):
                list(loader)
        loader.close()


def test_an_iterable_dataset_goes_on_where_it_is_and_begins_anew_where_its_stream_changed(
    tmp_path: Path,
) -> None:
    flow = 'flow: {target: "tests.support.streams:Sharded", args: {count: 400}}'

    def text(batch_size: int) -> str:
        return config(
            "train: {dataset: flow, batch_size: 4}",
            f"other: {{dataset: flow, batch_size: {batch_size}}}",
            datasets=flow,
        )

    with serving(text(4), tmp_path) as daemon:
        with (
            loaderd.connect("train", address=daemon.run_dir) as train,
            loaderd.connect("other", address=daemon.run_dir) as other,
        ):
            going, ending = iter(train), iter(other)
            rows = [next(going), next(going)]
            next(ending)
            sighup(daemon, text(5))
            assert "changed by a reload" in rest_of(ending)[1]
            rows += going
            assert torch.cat(rows).tolist() == list(range(400))
        with loaderd.connect("other", address=daemon.run_dir) as other:
            assert torch.cat(list(other)).tolist() == list(range(400))


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_that_live_on_learn_a_changed_transform(tmp_path: Path, start_method: str) -> None:
    def text(transform: str) -> str:
        stream = f"train: {{dataset: rows, batch_size: 4, transform: {transform}}}"
        more = f"workers: {{count: 1, start_method: {start_method}}}"
        return config(stream, more=more)

    with serving(text("[]"), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert {batch.shape[1] for batch in loader} == {8}
        before = pids(daemon, "")
        sighup(daemon, text(JITTER))
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert {batch.shape[1] for batch in loader} == {9}
        assert pids(daemon, "") == before
        (worker,) = pids(daemon, "worker")
        os.kill(worker, signal.SIGKILL)  # the next one is told by its zygote
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert {batch.shape[1] for batch in loader} == {9}


def test_a_trainer_that_waits_for_a_stuck_worker_is_told_and_the_worker_ends(
    tmp_path: Path,
) -> None:
    kept = "kept: {dataset: rows, batch_size: 4}"
    stuck = "late: {dataset: stuck, batch_size: 4, sampler: sequential, slot_bytes: 4KiB}"
    script = """
        loader = loaderd.connect("late", address=ADDRESS)
        iterator = iter(loader)
        say("waits")
        try:
            next(iterator)
        except loaderd.StreamEnded as error:
            say("removed by a reload" in str(error))
        wait()
    """
    with serving(config(stuck, kept, datasets=f"{ROWS}\n{STUCK}"), tmp_path) as daemon:
        before = status(daemon)["memory"]["arena_bytes"]
        with trainer(script, daemon.run_dir) as waiting:
            waiting.expect("waits")
            until(lambda: "busy" in [w["state"] for w in status(daemon)["workers"]], "it is stuck")
            sighup(daemon, config(kept))
            waiting.expect("True")
            until(lambda: not pids(daemon, "zygote stuck"), "its zygote ends")
            until(
                lambda: status(daemon)["memory"]["arena_bytes"] < before,
                "the slot that it was to fill is given back",
            )
            assert not [p for p in daemon.workers() if "stuck" in " ".join(p.cmdline())]
        with loaderd.connect("kept", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 10


# --- streams that come ----------------------------------------------------------------------


def test_new_streams_of_an_old_and_of_a_new_dataset_are_served(tmp_path: Path) -> None:
    train = "train: {dataset: rows, batch_size: 4}"
    with serving(config(train), tmp_path) as daemon:
        line = sighup(
            daemon,
            config(
                train,
                "old: {dataset: rows, batch_size: 8}",
                "new: {dataset: draws, batch_size: 8}",
                datasets=f"{ROWS}\n{DRAWS}",
            ),
        )
        assert "added: old, new;" in line
        names = [stream["name"] for stream in status(daemon)["streams"]]
        assert names == ["train", "old", "new"]
        for stream, batches in [("train", 10), ("old", 5), ("new", 6)]:
            with loaderd.connect(stream, address=daemon.run_dir) as loader:
                assert len(list(loader)) == batches
        with pytest.raises(UnknownStream, match="'train', 'old', 'new'"):
            loaderd.connect("none", address=daemon.run_dir)


def test_a_changed_dataset_is_built_again_and_no_other(tmp_path: Path) -> None:
    streams = ("train: {dataset: rows, batch_size: 4}", "other: {dataset: draws, batch_size: 4}")
    text = config(*streams, datasets=f"{ROWS}\n{DRAWS}")
    with serving(text, tmp_path) as daemon:
        loader = loaderd.connect("train", address=daemon.run_dir)
        iterator = iter(loader)
        next(iterator)
        rows, draws = pids(daemon, "zygote rows"), pids(daemon, "zygote draws")
        line = sighup(daemon, text.replace("length: 40", "length: 20"))
        assert "changed: train; removed: none; unchanged: other" in line
        assert "changed by a reload" in rest_of(iterator)[1]
        loader.close()
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 5
        until(lambda: not rows & pids(daemon, "zygote"), "the old zygote ends")
        assert pids(daemon, "zygote draws") == draws


def test_a_stream_that_failed_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "data"
    datasets = f'{ROWS}\nlate: {{target: "{HERE}:NeedsFile", args: {{file: "{file}"}}}}'
    text = config(
        "train: {dataset: rows, batch_size: 4}",
        "late: {dataset: late, batch_size: 4}",
        datasets=datasets,
    )
    with serving(text, tmp_path) as daemon:
        with pytest.raises(StreamEnded, match="is not there yet"):
            loaderd.connect("late", address=daemon.run_dir)
        file.touch()
        assert "changed: late; removed: none; unchanged: train" in sighup(daemon, text)
        with loaderd.connect("late", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 10


def test_a_daemon_that_a_reload_leaves_without_a_stream_lives_on(tmp_path: Path) -> None:
    file = tmp_path / "data"
    datasets = f'late: {{target: "{HERE}:NeedsFile", args: {{file: "{file}"}}}}'
    text = config("train: {dataset: rows, batch_size: 4}")
    with serving(text, tmp_path) as daemon:
        sighup(daemon, config("late: {dataset: late, batch_size: 4}", datasets=datasets))
        with pytest.raises(StreamEnded, match="is not there yet"):
            loaderd.connect("late", address=daemon.run_dir)
        sighup(daemon, text)
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 10


# --- configurations that are wrong ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("streams: {train: [", "is not YAML"),
        (config("train: {dataset: rows, batchsize: 4}"), "did you mean 'batch_size'"),
        (None, "No such file"),
        (config("train: {dataset: rows, batch_size: 4, slots: 2}"), "too few"),
    ],
)
def test_an_invalid_configuration_changes_nothing(
    tmp_path: Path, text: str | None, why: str
) -> None:
    right = config("train: {dataset: rows, batch_size: 4}")
    with serving(right, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            iterator = iter(loader)
            next(iterator)
            before = pids(daemon, "")
            line = sighup(daemon, text)
            assert "ERROR" in line
            assert why in line
            assert "; nothing changed" in line
            assert len(list(iterator)) == 9
            assert [s["name"] for s in status(daemon)["streams"]] == ["train"]
        assert before <= pids(daemon, "")
        assert "unchanged: train" in sighup(daemon, right)


def test_settings_that_only_a_restart_changes_are_named(tmp_path: Path) -> None:
    train = "train: {dataset: rows, batch_size: 4}"
    with serving(config(train), tmp_path) as daemon:
        sighup(daemon, config(train, more="workers: {count: 1}\nmemory: 1GiB"))
        assert "WARNING" in daemon.wait_for(r"workers.count stays 2; restart to apply 1")
        daemon.wait_for(f"memory stays {2**32}; restart to apply {2**30}")
        assert status(daemon)["memory"]["budget_bytes"] == 2**32


def test_a_changed_stream_waits_for_memory_that_a_batch_in_hand_keeps(tmp_path: Path) -> None:
    def text(batch_size: int) -> str:
        slots = "slots: 5, slot_bytes: 128KiB"
        stream = f"train: {{dataset: rows, batch_size: {batch_size}, {slots}}}"
        return config(stream, more="workers: {count: 1}\nmemory: 1MiB")

    with serving(text(4), tmp_path) as daemon:
        loader = loaderd.connect("train", address=daemon.run_dir)
        iterator = iter(loader)
        held = next(iterator)
        values = held.clone()
        daemon.run_dir.with_suffix(".yaml").write_text(text(5))
        since = len(daemon.log)
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("stream 'train' waits for memory: removed streams still have 655360 bytes")
        assert torch.equal(held, values)
        rest_of(iterator)
        del held
        daemon.wait_for("ready at", since=since + 1)
        loader.close()
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 8


# --- what is left ---------------------------------------------------------------------------


def test_adding_and_removing_leaves_no_byte_descriptor_or_process(tmp_path: Path) -> None:
    train = "train: {dataset: rows, batch_size: 4}"
    few = config(train)
    many = config(
        train,
        "old: {dataset: rows, batch_size: 8}",
        "new: {dataset: draws, batch_size: 8}",
        datasets=f"{ROWS}\n{DRAWS}",
    )

    def belongings() -> tuple[int, int, int, int]:
        process = psutil.Process(daemon.pid)
        mapped = sum("loaderd-" in m.path for m in psutil.Process(worker).memory_maps(False))
        arena_bytes = status(daemon)["memory"]["arena_bytes"]
        return arena_bytes, process.num_fds(), len(daemon.workers()), mapped

    with serving(few, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            list(loader)
        worker = min(pids(daemon, "worker"))
        sighup(daemon, few)  # its first reading starts a thread that stays
        until(lambda: not status(daemon)["trainers"], "the trainer is gone")
        before = belongings()
        for _ in range(3):
            sighup(daemon, many)
            for stream in ("train", "old", "new"):
                with loaderd.connect(stream, address=daemon.run_dir) as loader:
                    list(loader)
            assert belongings() > before
            sighup(daemon, few)
            until(lambda: belongings()[::2] == before[::2], f"as before: {before}")
        until(lambda: belongings() == before, f"as before: {before}")


def test_five_signals_at_once_while_trainers_run(tmp_path: Path) -> None:
    def text(batch_size: int) -> str:
        return config(
            "train: {dataset: draws, batch_size: 4}",
            f"other: {{dataset: draws, batch_size: {batch_size}}}",
            datasets=DRAWS,
        )

    failures: list[BaseException] = []
    epochs: list[int] = []
    stop = threading.Event()

    def train() -> None:
        try:
            with loaderd.connect("train", address=daemon.run_dir) as loader:
                while not stop.is_set() or not epochs:
                    rows = torch.cat(list(loader))[:, 0]
                    assert sorted(rows.tolist()) == list(range(48))
                    epochs.append(len(rows))
        except BaseException as error:  # noqa: BLE001 - for the test's own thread to raise
            failures.append(error)

    def other() -> None:
        try:
            while not stop.is_set():
                with (
                    suppress(StreamEnded),
                    loaderd.connect("other", address=daemon.run_dir) as loader,
                ):
                    for batch in loader:
                        assert len(batch)
        except LoaderdError as error:
            failures.append(error)

    with serving(text(3), tmp_path) as daemon:
        threads = [threading.Thread(target=target) for target in (train, train, other, other)]
        for thread in threads:
            thread.start()
        try:
            for step in range(6):
                file = daemon.run_dir.with_suffix(".yaml")
                file.write_text(text(4 + step))
                daemon.text()
                since = len(daemon.log)
                for _ in range(5):
                    daemon.process.send_signal(signal.SIGHUP)
                daemon.wait_for("reloaded", since=since)
        finally:
            stop.set()
            for thread in threads:
                thread.join(DEADLINE_S)
        assert not failures
        assert len(epochs) >= 2
        with loaderd.connect("other", address=daemon.run_dir) as loader:
            assert {len(batch) for batch in loader} <= {9, 48 % 9}
        assert "Traceback" not in daemon.text()


def test_systemd_is_told_of_a_reload_and_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(os.fspath(path))
        notified.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", os.fspath(path))
        text = config("train: {dataset: rows, batch_size: 4}")
        with serving(text, tmp_path) as daemon:
            assert notified.recv(100) == b"READY=1"
            for new in (text.replace("batch_size: 4", "batch_size: 5"), "streams: ["):
                began = time.monotonic_ns() // 1000
                sighup(daemon, new)
                reloading, at = notified.recv(100).decode().split("\n")
                assert reloading == "RELOADING=1"
                name, _, usec = at.partition("=")
                assert name == "MONOTONIC_USEC"
                assert began <= int(usec) <= time.monotonic_ns() // 1000
                assert notified.recv(100) == b"READY=1"
        assert notified.recv(100) == b"STOPPING=1"
