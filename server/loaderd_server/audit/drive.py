"""Real trainers as processes: started, subscribed, let go together, and all they were given kept."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from loaderd_protocol.audits import SeenBatch, decode_seen
from loaderd_protocol.errors import ProtocolError
from loaderd_server.audit.plan import AuditRequest, TrainerPlan
from loaderd_server.workers.zygote_process import how_exited

_LINES = 20


@dataclass(frozen=True, slots=True)
class TrainerRun:
    """What a trainer was given; ``ended`` tells why where it ended before its last epoch."""

    plan: TrainerPlan
    seen: tuple[SeenBatch, ...]
    ended: str = ""

    def epoch(self, number: int) -> tuple[SeenBatch, ...]:
        """What it was given in an epoch."""
        return tuple(batch for batch in self.seen if batch.epoch == number)

    def failed(self, number: int) -> tuple[int, ...]:
        """The positions of an epoch that it was told of as left out."""
        told = (sample for batch in self.epoch(number) for sample in batch.failed)
        return tuple(sorted({sample.position for sample in told}))


def drive(
    request: AuditRequest, address: Path, trainers: Sequence[TrainerPlan], *, seeded: bool
) -> tuple[TrainerRun, ...]:
    """Runs all trainers at once, through all epochs. ``seeded``: each asks for its own order."""
    with contextlib.ExitStack() as stack:
        # Entered first: where this is interrupted, the trainers end before their readers are awaited.
        readers = stack.enter_context(ThreadPoolExecutor(len(trainers)))
        running = [
            stack.enter_context(contextlib.closing(_Trainer(request, address, plan, seeded=seeded)))
            for plan in trainers
        ]
        # All have subscribed before the first goes: none is late to a queue or to a window.
        for trainer in running:
            trainer.wait_until_ready()
        for trainer in running:
            trainer.go()
        return tuple(readers.map(_Trainer.finish, running))


class _Trainer:
    """One process; ``close`` ends it, whatever it does."""

    def __init__(
        self, request: AuditRequest, address: Path, plan: TrainerPlan, *, seeded: bool
    ) -> None:
        self._plan = plan
        self._errors: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *_arguments(request, address, plan, seeded=seeded)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            # A rank of a torchrun around the audit is not this trainer's.
            env={k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")},
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Waits for its subscription; where it ended instead, ``finish`` tells."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def go(self) -> None:
        """Lets it iterate."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()

    def finish(self) -> TrainerRun:
        """Reads to its end."""
        assert self._process.stdout is not None
        seen, garbled = [], ""
        for line in self._process.stdout:
            try:
                seen.append(decode_seen(line))
            except ProtocolError as error:
                garbled = str(error)
        code = self._process.wait()
        ended = garbled if code == 0 else f"it {how_exited(code)}:\n{self._tail()}"
        return TrainerRun(self._plan, tuple(seen), ended)

    def close(self) -> None:
        """Ends it, and what this process has of it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._errors.close()

    def _tail(self) -> str:
        self._errors.seek(0)
        return "\n".join(f"  {line}" for line in self._errors.read().splitlines()[-_LINES:])


def _arguments(
    request: AuditRequest, address: Path, plan: TrainerPlan, *, seeded: bool
) -> list[str]:
    key = plan.sequence
    arguments = [
        "-m", "loaderd.audit_trainer", request.stream, "--address", str(address),
        "--epochs", str(request.epochs), "--rank", str(key.rank),
        "--world-size", str(key.world_size), "--timeout-s", str(request.timeout_s),
    ]  # fmt: skip
    if plan.has_own_size:
        arguments += ["--batch-size", str(plan.cut.size)]
    if seeded:
        arguments += ["--seed", str(key.seed)]
    return [*arguments, "--whole"] if plan.cut.whole else arguments
