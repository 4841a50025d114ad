"""A daemon for the length of a block: started as a process, waited for, stopped by SIGTERM."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

START_S = 60.0
STOP_S = 10.0


class DaemonFailed(RuntimeError):
    """The daemon did not start, or did not stop as it should; the text has its log."""


@dataclass
class Daemon:
    """A running ``loaderd serve``; ``run_dir`` is its address."""

    process: subprocess.Popen[str]
    run_dir: Path
    log: list[str] = field(default_factory=list)
    _lines: queue.Queue[str | None] = field(default_factory=queue.Queue)

    def wait_until_ready(self) -> None:
        """Reads the log up to the line that says so.

        Raises: DaemonFailed.
        """
        while True:
            try:
                line = self._lines.get(timeout=START_S)
            except queue.Empty:
                raise self.failed(f"not ready after {START_S:.0f} s") from None
            if line is None:
                code = self.process.wait(STOP_S)
                raise self.failed(f"ended with code {code} before it was ready")
            if "ready" in line:
                return

    def status(self) -> dict[str, Any]:
        """The document of ``loaderd status --json``."""
        command = [sys.executable, "-m", "loaderd_server", "status", "--json"]
        answer = subprocess.run(
            [*command, "--address", str(self.run_dir)],
            check=True, capture_output=True, text=True, timeout=START_S,
        )  # fmt: skip
        document: dict[str, Any] = json.loads(answer.stdout)
        return document

    def memory(self) -> tuple[int, int]:
        """Proportional (PSS) and private bytes of the daemon, its zygotes and workers together."""
        total = private = 0
        own = psutil.Process(self.process.pid)
        for process in [own, *own.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                memory = process.memory_full_info()
                total += memory.pss
                private += memory.uss
        return total, private

    def stop(self) -> None:
        """SIGTERM, and its end awaited.

        Raises: DaemonFailed where it does not end in time, or with an error.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)
            raise self.failed(f"did not stop within {STOP_S:.0f} s of SIGTERM") from None
        if code != 0:
            raise self.failed(f"ended with code {code}")

    def failed(self, what: str) -> DaemonFailed:
        """The error for ``what``, with the log."""
        return DaemonFailed(f"the daemon {what}; its log:\n{''.join(self.log)}")

    def follow(self) -> None:
        """Keeps reading the log, so that the daemon never waits for its reader."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self._lines.put(line)
        self._lines.put(None)


@contextmanager
def serving(
    config: Path, run_dir: Path, program: Sequence[str] = ("loaderd_server",)
) -> Iterator[Daemon]:
    """A ready daemon that is stopped at the end. ``program``: the module to run and its arguments.

    Raises: DaemonFailed.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", *program, "serve",
         "--config", str(config), "--run-dir", str(run_dir)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    daemon = Daemon(process, run_dir)
    reader = threading.Thread(target=daemon.follow, daemon=True)
    reader.start()
    try:
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.stop()
        reader.join(STOP_S)
        assert process.stderr is not None
        process.stderr.close()
