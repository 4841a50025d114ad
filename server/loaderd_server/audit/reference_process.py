"""The reference in a process of its own: user code neither prints into the audit nor ends it.

Lines of JSON: the plan goes in, then a request an epoch; what it is, then an answer a request come out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import IO, Any, Self

from loaderd_protocol.records import from_array, to_array
from loaderd_server.audit.expected import EpochReference, ReferenceRequest
from loaderd_server.audit.failure import AuditFailed
from loaderd_server.audit.reference import NoReference, Reference
from loaderd_server.batching.faults import failure_of
from loaderd_server.batching.imports import load
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.workers import process_setup
from loaderd_server.workers.plan import DatasetPlan
from loaderd_server.workers.plan_codec import decode_plan, encode_plan
from loaderd_server.workers.process import build_dataset
from loaderd_server.workers.zygote_process import how_exited


@dataclass(frozen=True, slots=True)
class _Built:
    """The dataset is built; or why not; or why there is no reference for it."""

    digests_whole: bool = False
    error: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    """An epoch, or why there is none."""

    reference: tuple[EpochReference, ...]
    error: str = ""


class ReferenceProcess:
    """A context: the process lives within it.

    Raises (on entry): AuditFailed where the dataset cannot be built.
    """

    def __init__(self, plan: DatasetPlan, stream: str) -> None:
        self._plan, self._stream = plan, stream
        self._process: subprocess.Popen[str] | None = None
        #: Whether batches are digested as wholes.
        self.digests_whole = False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._stream],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **process_setup.SINGLE_THREADED},
        )  # fmt: skip
        try:
            self._write(encode_plan(self._plan).hex())
            built = from_array(_Built, self._read())
            if built.refused:
                raise AuditFailed(built.refused, ExitCode.CONFIG)
            if built.error:
                raise AuditFailed(f"the reference cannot be made: {built.error}")
        except BaseException:
            self.__exit__()
            raise
        self.digests_whole = built.digests_whole
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def epoch(self, request: ReferenceRequest) -> EpochReference:
        """An epoch, made now.

        Raises: AuditFailed where a sampler raises, or a sample ends the process.
        """
        self._write(json.dumps(to_array(request)))
        answer = from_array(_Answer, self._read())
        if answer.error:
            raise AuditFailed(f"the reference of epoch {request.epoch} failed: {answer.error}")
        return answer.reference[0]

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # Where it has ended, its answer's absence tells.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AuditFailed(
                f"the reference's process {how_exited(self._process.wait())}: a sample, a transform "
                f"or a sampler of stream {self._stream!r} ended it. Load the dataset in a plain loop "
                f"to see which"
            )
        return json.loads(line)


def main(stream: str) -> None:
    """The child: answers until its stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    process_setup.print_to_stderr()
    plan = decode_plan(bytes.fromhex(sys.stdin.readline()))
    try:
        dataset = build_dataset(plan)
        if plan.process.worker_init is not None:
            load(plan.process.worker_init)(0)
        reference = Reference(plan, stream, dataset)
    except NoReference as error:
        _say(answers, _Built(refused=str(error)))
        return
    except BaseException as error:  # noqa: BLE001 - user code; SystemExit too is news
        _say(answers, _Built(error=_told(error)))
        return
    _say(answers, _Built(reference.digests_whole))
    for line in iter(sys.stdin.readline, ""):
        try:
            made = reference.epoch(from_array(ReferenceRequest, json.loads(line)))
            _say(answers, _Answer((made,)))
        except BaseException as error:  # noqa: BLE001 - a user's sampler
            _say(answers, _Answer((), _told(error)))


def _say(answers: IO[str], record: object) -> None:
    answers.write(json.dumps(to_array(record)) + "\n")
    answers.flush()


def _told(error: BaseException) -> str:
    failure = failure_of(error, -1, "")
    kind = failure.class_name.rpartition(":")[2]
    return f"{kind}: {failure.text}\n{failure.traceback}"


if __name__ == "__main__":
    main(sys.argv[1])
