"""The processes of a run: one daemon, a nursery and its trainers; started, stopped, killed, told of."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import zmq
from tests.chaos.belongings import MARK
from tests.chaos.material import CONFIG, Role

from loaderd_protocol.address import resolve
from loaderd_protocol.errors import LoaderdError
from loaderd_server.cli.status import ask

ROOT = Path(__file__).parents[2]
_STOP_S = 10.0


class Failed(Exception):
    """The run has found a fault."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A trainer's process is gone; ``code`` is negative for a signal."""

    role: str
    pid: int
    code: int


class Fleet:
    """Every process that the run has started."""

    def __init__(self, home: Path, run: str) -> None:
        self.home = home
        self.run_dir = home / "run"
        self.temporary = home / "tmp"
        self.log = home / "daemon.log"
        self.temporary.mkdir()
        (home / "chaos.yaml").write_text(CONFIG)
        self._environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1", MARK: run,
        }  # fmt: skip
        #: pid by role, of those that run; and which of them are stopped.
        self.trainers: dict[str, int] = {}
        self.stopped: set[int] = set()
        self.daemon: subprocess.Popen[bytes] | None = None
        self.daemon_since = 0.0
        self._told: queue.Queue[str] = queue.Queue()
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.nursery", str(self.run_dir), str(home)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment,
            cwd=home,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._nursery.stdout is not None
        for line in self._nursery.stdout:
            self._told.put(line.strip())

    # --- the daemon -------------------------------------------------------------------------

    def serve(self) -> None:
        """Starts a daemon on the run directory."""
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                [sys.executable, "-m", "loaderd_server", "serve",
                 "--config", str(self.home / "chaos.yaml"), "--run-dir", str(self.run_dir)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                cwd=self.home,
            )  # fmt: skip
        self.daemon_since = time.monotonic()

    def daemon_pid(self) -> int:
        """The daemon's pid; 0 while there is none."""
        return self.daemon.pid if self.daemon is not None else 0

    def kill_daemon(self) -> None:
        """SIGKILL."""
        if self.daemon is not None:
            self.stopped.discard(self.daemon.pid)
            self.daemon.kill()
            self.daemon.wait(_STOP_S)
            self.daemon = None

    def stop_daemon(self) -> None:
        """SIGTERM.

        Raises: Failed where it does not end well and in time.
        """
        assert self.daemon is not None
        self.resume(self.daemon.pid)
        self.daemon.terminate()
        try:
            code = self.daemon.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the daemon did not stop within {_STOP_S:g} s of SIGTERM") from None
        self.daemon = None
        if code != 0:
            raise Failed(f"the daemon stopped with exit code {code}")

    def status(self) -> str:
        """The daemon's status as JSON, or why there is none."""
        try:
            return ask(resolve(self.run_dir))
        except (OSError, LoaderdError, zmq.ZMQError) as error:
            return f"no status: {error!r}"

    # --- trainers ---------------------------------------------------------------------------

    def start(self, role: Role) -> None:
        """Has a trainer forked; ``next_event`` notes its pid."""
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(f"{role.name}\n")
        self._nursery.stdin.flush()
        self.trainers[role.name] = 0

    def next_event(self, timeout_s: float) -> Ended | None:
        """Waits for the end of a trainer, so long at most."""
        try:
            verb, pid_text, rest = self._told.get(timeout=max(0.0, timeout_s)).split(" ", 2)
        except queue.Empty:
            return None
        pid = int(pid_text)
        if verb == "started":
            self.trainers[rest] = pid
            return None
        role = next(name for name, known in self.trainers.items() if known == pid)
        del self.trainers[role]
        self.stopped.discard(pid)
        return Ended(role, pid, int(rest))

    # --- signals ----------------------------------------------------------------------------

    def pause(self, pid: int) -> None:
        """SIGSTOP."""
        os.kill(pid, signal.SIGSTOP)
        self.stopped.add(pid)

    def resume(self, pid: int) -> None:
        """SIGCONT, if it is there and was stopped."""
        if pid in self.stopped:
            self.stopped.discard(pid)
            os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Ends whatever is left; the nursery kills its trainers."""
        self.kill_daemon()
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.close()
        self._nursery.wait(_STOP_S)
        self._reader.join(_STOP_S)
        self._nursery.stdout.close()
