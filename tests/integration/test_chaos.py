"""Kills, stops and restarts on the real daemon, in short; `make chaos` is the long form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.serving import ROOT


@pytest.mark.timeout(240)
def test_trainers_get_every_batch_whatever_is_killed_stopped_or_restarted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.run", "--seconds", "15", "--seed", "4"],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True,
        timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    deeds = {line.rsplit(None, 1)[0] for line in done.stdout.splitlines()}
    assert {"kill daemon", "kill trainer", "kill worker", "stop trainer"} <= deeds, done.stdout
    assert not list(tmp_path.iterdir())
