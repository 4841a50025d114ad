"""A real daemon for a test: started with a config text, waited for, stopped, its log kept."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

START_S = 60.0
STOP_S = 10.0
ROOT = Path(__file__).parents[2]


@dataclass
class Daemon:
    """A running ``loaderd serve`` and what it has logged so far."""

    process: subprocess.Popen[str]
    run_dir: Path
    log: list[str] = field(default_factory=list)
    _lines: queue.Queue[str | None] = field(default_factory=queue.Queue)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, pattern: str, deadline_s: float = START_S, since: int = 0) -> str:
        """The first log line from the ``since``-th on, old or new, that matches ``pattern``."""
        for line in self.log[since:]:
            if re.search(pattern, line):
                return line
        while True:
            try:
                line_or_end = self._lines.get(timeout=deadline_s)
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in {deadline_s} s:\n{self.text()}") from None
            if line_or_end is None:
                raise AssertionError(f"the daemon ended without {pattern!r}:\n{self.text()}")
            self.log.append(line_or_end)
            if re.search(pattern, line_or_end):
                return line_or_end

    def text(self) -> str:
        """Everything logged up to now."""
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return "".join(self.log)
            if line is not None:
                self.log.append(line)

    def workers(self) -> list[psutil.Process]:
        """The daemon's zygotes and workers."""
        return psutil.Process(self.pid).children(recursive=True)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)
            raise AssertionError(f"no stop in {STOP_S} s:\n{self.text()}") from None

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)


def start(config: str, directory: Path, name: str = "run") -> Daemon:
    """Starts a daemon on ``directory/name``; it may not be ready yet (see ``Daemon.wait_for``)."""
    config_file = directory / f"{name}.yaml"
    config_file.write_text(config)
    run_dir = directory / name
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "loaderd_server", "serve",
         "--config", str(config_file), "--run-dir", str(run_dir)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env=environment, cwd=directory, start_new_session=True,
    )  # fmt: skip
    daemon = Daemon(process, run_dir)
    threading.Thread(target=daemon._read, daemon=True).start()
    return daemon


@contextmanager
def serving(config: str, directory: Path, name: str = "run") -> Iterator[Daemon]:
    """A ready daemon that is stopped at the end."""
    daemon = start(config, directory, name)
    try:
        daemon.wait_for("ready")
        yield daemon
    finally:
        daemon.stop()
        assert daemon.process.stderr is not None
        daemon.process.stderr.close()
