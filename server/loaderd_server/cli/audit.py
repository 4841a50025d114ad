"""``loaderd audit``: real trainers on real daemons, held against a reference."""

from __future__ import annotations

import signal
import sys

import zmq

from loaderd_protocol.address import resolve
from loaderd_protocol.errors import LoaderdError
from loaderd_server.audit.failure import AuditFailed
from loaderd_server.audit.plan import AuditRequest
from loaderd_server.audit.run import audit as carry_out
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.cli.status import ask


def audit(request: AuditRequest, as_json: bool) -> int:
    """Carries out an audit and prints its report; returns the exit code."""
    # As Ctrl-C: daemons, trainers and folders of this audit go with it.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        if request.address is not None:
            _check_answers(request)
        report = carry_out(request, lambda line: _tell(f"{line} ..."))
    except AuditFailed as failed:
        _tell(f"loaderd: {failed}")
        return int(failed.code)
    sys.stdout.write((report.json() if as_json else report.text()) + "\n")
    return int(ExitCode.STOPPED if report.is_right else ExitCode.RULE_BROKEN)


def _check_answers(request: AuditRequest) -> None:
    address = resolve(request.address)
    try:
        ask(address)
    except (OSError, LoaderdError, zmq.ZMQError) as error:
        raise AuditFailed(
            f"no answer from {address.run_dir}: {error}. Is `loaderd serve` running there?",
            ExitCode.NO_DAEMON,
        ) from None


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
