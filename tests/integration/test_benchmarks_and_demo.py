"""The benchmarks and the demo run from nothing to their tables, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.results import Section, Spread, Target, ratio

ROOT = Path(__file__).parents[2]
DEADLINE_S = 280


def run(*command: str, temporary: Path) -> str:
    """Runs a module in the repository's folder; its stdout."""
    done = subprocess.run(
        [sys.executable, "-m", *command], check=False, cwd=ROOT, capture_output=True, text=True,
        timeout=DEADLINE_S, stdin=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_the_demo_trains_twice_on_what_was_loaded_once(tmp_path: Path) -> None:
    output = run("examples.quickstart.demo", temporary=tmp_path)
    assert "batches of all trainers identical" in output
    # 2.00 where the trainers keep within the window; a crowded machine may pull them apart.
    found = re.search(r"7,936 \((\d\.\d+) x loaded\)", output)
    assert found is not None
    assert float(found[1]) > 1.5
    assert "the daemon stopped cleanly" in output
    assert [path.name for path in tmp_path.iterdir() if "loaderd" in path.name] == []


@pytest.mark.timeout(300)
def test_the_benchmarks_write_their_tables(tmp_path: Path) -> None:
    output = run("benchmarks.run", "--quick", temporary=tmp_path)
    assert "QUICK run: these numbers say nothing" in output
    folder = ROOT / ".bench" / "quick"
    assert (folder / "results.md").read_text() in output
    document = json.loads((folder / "results.json").read_text())
    assert {"processor", "cores", "torch"} <= set(document["machine"])
    shapes = {section["title"]: len(section["rows"]) for section in document["sections"]}
    assert shapes == {
        "Photographs (decode-bound)": 7,
        "Float batches of 38.5 MB (copy-bound)": 6,
        "Announce to next() returning": 2,
        "First batch": 3,
        "Trainers that drift apart": 5,
    }
    for section in document["sections"]:
        assert all(len(row) == len(section["headings"]) for row in section["rows"])
        for name, runs in section["raw"].items():  # a difference may be below 0
            assert all(value > 0 or name == "gaps" for run in runs for value in run)
    assert [len(section["targets"]) for section in document["sections"]] == [3, 2, 0, 1, 4]


def test_an_unknown_benchmark_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "fotos"],
        check=False, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no 'fotos'; there are photographs, floats" in done.stderr


def test_a_job_that_raises_fails_the_run_with_its_traceback() -> None:
    script = "from benchmarks.processes import together; together([float, len])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "benchmarks.processes.JobFailed: Traceback" in done.stderr
    assert "TypeError" in done.stderr
    assert "leaked" not in done.stderr


def test_ratios_are_taken_within_a_repetition() -> None:
    assert ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == Spread(2.0, 1.0, 3.0)


def test_a_missed_target_says_so() -> None:
    target = Target("a beside b", 0.9, Spread(0.89, 0.5, 1.2))
    section = Section("Title", ("who", "rate"), (("a", "1"),), targets=(target,))
    assert not target.is_met
    assert section.markdown() == (
        "## Title\n\n| who | rate |\n| --- | --- |\n| a | 1 |\n\n"
        "Target NOT reached: a beside b is 0.89 (0.50 to 1.20), to be at least 0.9.\n"
    )
