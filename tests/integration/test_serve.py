"""``loaderd serve`` as a process: how it starts, stops, refuses and ends (cases 5, 6 and 7)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from tests.support.serving import Daemon, serving, start
from tests.support.trainers import ROOT

import loaderd

ROWS = 'datasets: {rows: {target: "tests.support.case_datasets:Counting", args: {length: 40}}}\n'
CONFIG = "workers: {count: 2}\n" + ROWS + "streams: {train: {dataset: rows, batch_size: 4}}\n"


#: The sum of 32 samples drawn under seed 1: it must never change, on any machine.
BYTES_OF_SEED_1 = 542.867897254753


def ended(daemon: Daemon, deadline_s: float = 60) -> tuple[int, str]:
    """Waits for a daemon that ends by itself: its exit code and all it said."""
    code = daemon.process.wait(deadline_s)
    while (line := daemon._lines.get(timeout=5)) is not None:
        daemon.log.append(line)
    assert daemon.process.stderr is not None
    daemon.process.stderr.close()
    return code, "".join(daemon.log)


def run_loaderd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loaderd_server", *arguments],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_the_ready_line_tells_address_streams_arenas_and_workers(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        line = daemon.wait_for("ready")
        for part in (str(daemon.run_dir), "train", "slots", "arenas", "2 workers", str(daemon.pid)):
            assert part in line


def test_processes_say_what_they_are(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            list(loader)
        titles = {process.cmdline()[0] for process in daemon.workers()}
        assert "loaderd: zygote rows" in titles
        assert any(title.startswith("loaderd: worker ") for title in titles)
        assert psutil.Process(daemon.pid).cmdline()[0] == f"loaderd: serve {daemon.run_dir}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_within_three_seconds_though_a_worker_hangs(
    tmp_path: Path, number: signal.Signals
) -> None:
    text = """
datasets: {s: {target: "tests.support.case_datasets:Sleeping", args: {at: 0, sleep_s: 600}}}
streams: {train: {dataset: s, batch_size: 4, sampler: sequential, slot_bytes: 4KiB}}
"""
    with serving(text, tmp_path) as daemon:
        loader = loaderd.connect("train", address=daemon.run_dir)
        iterator = iter(loader)
        processes = daemon.workers()
        began = time.monotonic()
        daemon.process.send_signal(number)
        assert daemon.process.wait(10) == 0
        assert time.monotonic() - began < 3
        assert not [p for p in processes if p.is_running() and p.status() != "zombie"]
        del iterator
        loader.close()
        assert sorted(path.name for path in daemon.run_dir.iterdir()) == ["lock"]


def test_a_second_signal_forces(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        (zygote,) = [p for p in daemon.workers() if "zygote" in p.cmdline()[0]]
        zygote.suspend()
        daemon.process.send_signal(signal.SIGTERM)
        daemon.wait_for("stopping")
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(10) == 130
        assert zygote.wait(5) is None or not zygote.is_running()


def test_case_7_a_second_daemon_on_an_address_names_the_first_and_ends(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        again = run_loaderd(
            "serve", "--config", str(tmp_path / "run.yaml"), "--run-dir", str(daemon.run_dir)
        )
        assert again.returncode == 3
        assert f"pid {daemon.pid}" in again.stderr
        assert "Traceback" not in again.stderr
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 10


def test_case_7_a_path_that_no_socket_can_have_is_refused_with_the_limit(tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text(CONFIG)
    long = tmp_path / ("d" * 110)
    refused = run_loaderd("serve", "--config", str(tmp_path / "cfg.yaml"), "--run-dir", str(long))
    assert refused.returncode == 2
    assert "107 bytes" in refused.stderr


def test_case_6_after_sigkill_of_all_it_starts_again_beside_a_neighbour(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path, "neighbour") as neighbour:
        first = start(CONFIG, tmp_path)
        first.wait_for("ready")
        with loaderd.connect("train", address=first.run_dir) as loader:
            list(loader)
        processes = first.workers()
        assert len(processes) >= 2
        first.process.kill()  # the daemon alone: the kernel must end the others
        first.process.wait(10)
        _gone, alive = psutil.wait_procs(processes, timeout=2)
        assert not alive
        assert first.process.stderr is not None
        first.process.stderr.close()
        with serving(CONFIG, tmp_path) as second:
            with loaderd.connect("train", address=second.run_dir) as loader:
                assert len(list(loader)) == 10
        with loaderd.connect("train", address=neighbour.run_dir) as loader:
            assert len(list(loader)) == 10


def test_case_5_a_budget_below_what_slots_need_ends_it_with_one_message(tmp_path: Path) -> None:
    text = "memory: 16MiB\n" + CONFIG.replace("batch_size: 4", "batch_size: 4, slot_bytes: 16MiB")
    code, said = ended(start(text, tmp_path))
    assert code == 4
    assert "64 MiB" in said
    assert "16 MiB" in said
    assert "`memory`" in said
    assert "Traceback" not in said


def test_case_5_a_budget_of_twice_the_machine_ends_it_with_one_message(tmp_path: Path) -> None:
    text = f"memory: {2 * psutil.virtual_memory().total}\n" + CONFIG
    code, said = ended(start(text, tmp_path))
    assert code == 4
    assert "more than this machine has" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        ("no_such_module:X", "no module 'no_such_module'"),
        ("tests.support.case_datasets:NoSuch", "has no 'NoSuch'"),
        ("tests.support.case_datasets:Killing", "missing 1 required positional argument"),
        ("builtins:object", "no length"),
    ],
)
def test_a_dataset_that_cannot_be_built_ends_it_and_says_why(
    tmp_path: Path, dataset: str, says: str
) -> None:
    text = (
        f'datasets: {{d: {{target: "{dataset}"}}}}\nstreams: {{t: {{dataset: d, batch_size: 1}}}}\n'
    )
    code, said = ended(start(text, tmp_path))
    assert code == 5
    assert says in said


def test_one_stream_that_fails_leaves_the_others(tmp_path: Path) -> None:
    text = """
datasets:
  rows: {target: "tests.support.case_datasets:Counting"}
  bad: {target: "tests.support.case_datasets:NoSuch"}
streams:
  train: {dataset: rows, batch_size: 4}
  broken: {dataset: bad, batch_size: 4}
"""
    with serving(text, tmp_path) as daemon:
        assert "closed: broken" in daemon.wait_for("ready")
        with pytest.raises(loaderd.StreamEnded, match="NoSuch"):
            loaderd.connect("broken", address=daemon.run_dir)
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            assert len(list(loader)) == 10


def test_an_unknown_stream_is_told_which_there_are(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with pytest.raises(loaderd.UnknownStream, match=r"'trian'.*train"):
            loaderd.connect("trian", address=daemon.run_dir)


def test_check_and_bad_configurations_exit_with_2(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(CONFIG)
    bad.write_text(CONFIG.replace("batch_size", "batchsize"))
    assert run_loaderd("check", "--config", str(good)).returncode == 0
    for command in ("check", "serve"):
        refused = run_loaderd(command, "--config", str(bad))
        assert refused.returncode == 2
        assert "did you mean 'batch_size'?" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_status_shows_streams_workers_and_trainers(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            next(iter(loader))
            shown = run_loaderd("status", "--address", str(daemon.run_dir))
            assert shown.returncode == 0
            for part in ("train", "broadcast", "rows", str(os.getpid())):
                assert part in shown.stdout
            document = run_loaderd("status", "--json", "--address", str(daemon.run_dir)).stdout
            assert json.loads(document)["pid"] == daemon.pid
    gone = run_loaderd("status", "--address", str(daemon.run_dir))
    assert gone.returncode == 6
    assert "loaderd serve" in gone.stderr


def test_trainers_may_come_before_the_streams_are_open(tmp_path: Path) -> None:
    text = CONFIG.replace("case_datasets:Counting", "case_datasets:SlowToBuild")
    daemon = start(text, tmp_path)
    try:
        deadline = time.monotonic() + 30
        while not (daemon.run_dir / "attach.sock").exists():
            assert time.monotonic() < deadline
        with loaderd.connect("train", address=daemon.run_dir, timeout_s=60) as loader:
            assert len(list(loader)) == 10
    finally:
        daemon.stop()
        assert daemon.process.stderr is not None
        daemon.process.stderr.close()


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [1, 8])
def test_bytes_do_not_depend_on_workers_or_how_they_start(
    tmp_path: Path, workers: int, start_method: str
) -> None:
    text = f"""
workers: {{count: {workers}, start_method: {start_method}, affinity: cores, niceness: 1}}
datasets: {{d: {{target: "tests.support.case_datasets:Draws", args: {{length: 32}}}}}}
streams: {{train: {{dataset: d, batch_size: 2, seed: 1}}}}
"""
    with serving(text, tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            rows = torch.cat(list(loader))
    assert rows.sum().item() == pytest.approx(BYTES_OF_SEED_1, abs=1e-9)


def test_a_signal_to_a_daemon_that_is_ending_does_not_change_its_exit_code(tmp_path: Path) -> None:
    text = 'datasets: {d: {target: "no_such:X"}}\nstreams: {t: {dataset: d, batch_size: 1}}\n'
    daemon = start(text, tmp_path)
    daemon.wait_for("the daemon ends")
    daemon.process.send_signal(signal.SIGTERM)
    assert ended(daemon)[0] == 5


def test_a_client_only_installation_says_what_the_daemon_needs() -> None:
    script = (
        "import sys; sys.modules['click'] = None; import loaderd_server.__main__ as m; m.main()"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 1
    assert 'pip install "loaderd[server]"' in said.stderr
