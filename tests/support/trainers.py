"""Trainers as processes of their own, told line by line what to do, so that tests wait on events."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0

#: What every script begins with: ``say`` and ``wait`` talk to the test.
_PRELUDE = """
import sys, os, gc, signal
import torch
import loaderd

def say(*words):
    print(*words, flush=True)

def wait():
    return sys.stdin.readline().strip()

ADDRESS = sys.argv[1]
"""


class Trainer:
    """A script that runs with ``ADDRESS`` set and talks by lines."""

    def __init__(self, script: str, address: Path, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + textwrap.dedent(script), str(address), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=environment,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self, deadline_s: float = DEADLINE_S) -> str:
        """The next line that the script says."""
        try:
            line = self._lines.get(timeout=deadline_s)
        except queue.Empty:
            raise AssertionError(f"nothing said in {deadline_s} s; {self.errors()}") from None
        if line is None:
            raise AssertionError(f"ended with {self.process.wait()}; {self.errors()}")
        return line

    def expect(self, text: str, deadline_s: float = DEADLINE_S) -> None:
        """Asserts that the next line is ``text``."""
        said = self.line(deadline_s)
        assert said == text, f"said {said!r}, not {text!r}; {self.errors()}"

    def tell(self, text: str = "") -> None:
        """Lets the script's ``wait()`` return ``text``."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self, deadline_s: float = DEADLINE_S) -> int:
        """Waits for the script's end; its exit code."""
        return self.process.wait(deadline_s)

    def errors(self) -> str:
        """What the script wrote to stderr so far."""
        return "stderr:\n" + "".join(self._errors)

    def close(self) -> None:
        """Ends the process, whatever it does, and every pipe to it."""
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            if pipe is self.process.stdin:
                pipe.close()
        for reader in self._readers:
            reader.join(10)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._errors.append(line)


@contextmanager
def trainer(script: str, address: Path, *arguments: str) -> Iterator[Trainer]:
    """A running trainer that is gone at the end, whatever happened."""
    running = Trainer(script, address, *arguments)
    try:
        yield running
    finally:
        running.close()


def run(script: str, address: Path, *arguments: str) -> list[str]:
    """Runs a script to its end, which must be exit code 0; the lines it said."""
    with trainer(script, address, *arguments) as running:
        code = running.end()
        for reader in running._readers:
            reader.join(10)
        assert code == 0, f"exit code {code}; {running.errors()}"
        lines = []
        while (line := running._lines.get(timeout=1)) is not None:
            lines.append(line)
        return lines
