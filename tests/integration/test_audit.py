"""``loaderd audit`` on real daemons with real trainers: what is right passes, what is wrong is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.serving import ROOT, serving

from loaderd_server.audit.compare import Rule
from loaderd_server.audit.failure import AuditFailed
from loaderd_server.audit.testing import audit_stream
from loaderd_server.cli.exit_codes import ExitCode

DATASETS = "tests.support.audit_datasets"


def config(directory: Path, dataset: str = "Arrays", stream: str = "", top: str = "") -> Path:
    """A configuration with one stream of 26 samples in batches of 4."""
    file = directory / "cfg.yaml"
    file.write_text(
        f"python_path: [{ROOT}]\n{top}\n"
        f"streams: {{train: {{dataset: {{target: '{DATASETS}:{dataset}'}}, batch_size: 4{stream}}}}}\n"
    )
    return file


def loaderd_audit(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loaderd_server", "audit", *arguments],
        capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_a_good_stream_is_right_with_one_and_three_workers(tmp_path: Path) -> None:
    report = audit_stream(config(tmp_path), "train", trainers=3, batch_sizes=(4, 7, 40))
    lines = report.text().splitlines()
    assert "epoch 0, seed 0: 26 samples, each index once" in lines
    for batch, batches in ((4, 7), (7, 4), (40, 1)):
        for workers in ("1 worker", "3 workers"):
            told = f"(batch {batch}, {workers}): {batches} batches, 26 rows, all equal in order"
            assert sum(line.endswith(told) for line in lines) == 2
    assert "1 and 3 workers: trainers were given equal bytes" in lines
    assert lines[-1] == "every rule holds"


def test_a_dataset_that_draws_from_the_system_is_found_out(tmp_path: Path) -> None:
    done = loaderd_audit(
        "train", "--config", str(config(tmp_path, "FromTheSystem")), "--epochs", "1", "--json"
    )
    assert done.returncode == ExitCode.RULE_BROKEN, done.stderr
    report = json.loads(done.stdout)
    wrong = report["trainers"][0]["broken"][0]
    assert (wrong["rule"], wrong["position"], wrong["count"]) == ("wrong_bytes", 0, 26)
    assert wrong["expected"] != wrong["found"]
    assert report["groups"][-1]["broken"][0]["rule"] == "unequal"
    assert "the dataset is not deterministic: index " in report["notes"][0]


def test_a_dataset_that_knows_its_worker_fails_the_test_with_the_report(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match="BROKEN trainer 0, epoch 0: bytes that no sample"
    ) as e:
        audit_stream(config(tmp_path, "KnowsItsWorker"), "train", trainers=1, epochs=1)
    assert "1 and 3 workers, epoch 0: not equal" in str(e.value)
    assert "not deterministic" not in str(e.value)


@pytest.mark.parametrize("drop_last", ["false", "true"])
def test_ranks_are_dealt_as_torch_deals_them(tmp_path: Path, drop_last: str) -> None:
    file = config(tmp_path, stream=f", mode: shard, drop_last: {drop_last}")
    report = audit_stream(file, "train", world_size=2, workers=(2,), epochs=1)
    rows = [check.rows for check in report.trainers]
    assert rows == ([13, 13] if drop_last == "false" else [12, 12])
    assert "rank 1 of 2" in report.text()


def test_each_batch_of_a_queue_goes_to_exactly_one_trainer(tmp_path: Path) -> None:
    report = audit_stream(config(tmp_path, stream=", mode: queue"), "train", workers=(2,))
    assert sum(check.rows for check in report.trainers) == 52
    assert "2 workers: 14 batches, each to exactly one trainer" in report.text()


def test_independent_trainers_are_given_orders_of_their_own(tmp_path: Path) -> None:
    file = config(tmp_path, stream=", mode: independent")
    report = audit_stream(file, "train", workers=(2,), epochs=1)
    assert {order.seed for order in report.orders} == {0, 1}


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_samples_that_fail_are_taken_out_of_the_reference_and_counted(
    tmp_path: Path, policy: str
) -> None:
    file = config(tmp_path, "OddOnesFail", f", on_error: {policy}")
    report = audit_stream(file, "train", workers=(2,), batch_sizes=(4, 3), epochs=1)
    assert [check.left_out for check in report.trainers] == [5, 5]
    assert "5 samples left out as failed" in report.text()


def test_batches_that_fail_everywhere_break_no_rule_and_are_told(tmp_path: Path) -> None:
    file = config(tmp_path, "OddOnesFail", ", sampler: sequential")
    report = audit_stream(file, "train", workers=(2,), batch_sizes=(4, 3), epochs=1)
    assert [check.errors for check in report.trainers] == [5, 5]
    assert "a batch fails in the reference too: index 3: sample 3 is broken" in report.text()


def test_batches_of_a_users_collate_are_held_against_whole_ones(tmp_path: Path) -> None:
    file = config(tmp_path, stream=f", collate: '{DATASETS}:ragged'")
    report = audit_stream(file, "train", workers=(1, 2), epochs=1)
    assert "7 batches, all equal in order" in report.text()


def test_a_running_daemon_is_audited_where_it_is(tmp_path: Path) -> None:
    file = config(tmp_path)
    with serving(file.read_text(), tmp_path) as daemon:
        done = loaderd_audit(
            "train", "--config", str(file), "--address", str(daemon.run_dir), "--epochs", "1"
        )
        assert done.returncode == 0, done.stderr
        assert "trainer 0 (batch 4): 7 batches, 26 rows, all equal in order" in done.stdout
        assert daemon.process.poll() is None


def test_a_running_daemon_with_another_seed_is_found_out(tmp_path: Path) -> None:
    file = config(tmp_path)
    served = file.read_text().replace("batch_size: 4", "batch_size: 4, seed: 9")
    with serving(served, tmp_path) as daemon:
        done = loaderd_audit(
            "train", "--config", str(file), "--address", str(daemon.run_dir), "--epochs", "1"
        )
    assert done.returncode == ExitCode.RULE_BROKEN, done.stderr
    assert "BROKEN trainer 0, epoch 0: bytes that no sample of this epoch has" in done.stdout


def test_no_daemon_at_the_address_is_told(tmp_path: Path) -> None:
    done = loaderd_audit(
        "train", "--config", str(config(tmp_path)), "--address", str(tmp_path / "none")
    )
    assert done.returncode == ExitCode.NO_DAEMON
    assert "Is `loaderd serve` running there?" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "there is no stream 'nothing'; there is train"),
        (["train", "--batch-sizes", "4,many"], "'4,many' is not numbers such as 64,48,7"),
        (["train", "--world-size", "2"], "ranks count in streams of mode shard"),
    ],
)
def test_wrong_usage_is_told(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = loaderd_audit(*arguments, "--config", str(config(tmp_path)))
    assert done.returncode == ExitCode.CONFIG
    assert says in done.stderr


def test_a_configuration_that_is_none_is_told(tmp_path: Path) -> None:
    done = loaderd_audit("train", "--config", str(tmp_path / "missing.yaml"))
    assert done.returncode == ExitCode.CONFIG
    assert "cannot read" in done.stderr


def test_a_dataset_that_cannot_be_built_is_told_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(AuditFailed, match=r"(?s)has no 'Missing'.*Traceback"):
        audit_stream(config(tmp_path, "Missing"), "train")


def test_a_daemon_that_does_not_get_ready_is_told_with_its_log(tmp_path: Path) -> None:
    file = config(
        tmp_path, stream=", slot_bytes: 1MiB, slots: 8", top="memory: 9MiB\nreserve: 900GiB"
    )
    with pytest.raises(AuditFailed, match=r"(?s)the daemon ended.*memory") as failed:
        audit_stream(file, "train", workers=(1,))
    assert failed.value.code is ExitCode.MEMORY


def test_a_trainer_that_ends_by_itself_is_named_with_its_last_words(tmp_path: Path) -> None:
    file = config(tmp_path)
    served = file.read_text().replace("train:", "other:")
    with serving(served, tmp_path) as daemon:
        done = loaderd_audit(
            "train", "--config", str(file), "--address", str(daemon.run_dir), "--epochs", "1"
        )
    assert done.returncode == ExitCode.RULE_BROKEN, done.stderr
    assert Rule.ENDED.value in done.stdout
    assert "UnknownStream" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_audit_that_is_ended_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "loaderd_server", "audit", "train",
         "--config", str(config(tmp_path)), "--epochs", "10000"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert process.stderr is not None
    try:
        while "trainers on" not in (line := process.stderr.readline()):
            assert line, "the audit ended before it had a daemon"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3  # the reference, the daemon, its zygote
        process.send_signal(number)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    _gone, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    if number is signal.SIGTERM:
        assert list(temporary.iterdir()) == []
