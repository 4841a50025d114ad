"""For tests of one's own streams: an audit that fails the test where a rule is broken."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from loaderd_server.audit.plan import AuditRequest
from loaderd_server.audit.report import AuditReport
from loaderd_server.audit.run import audit


def audit_stream(
    config: str | os.PathLike[str],
    stream: str,
    *,
    trainers: int | None = None,
    batch_sizes: Sequence[int] = (),
    workers: Sequence[int] = (1, 3),
    epochs: int = 2,
    world_size: int = 1,
) -> AuditReport:
    """Audits a stream of a configuration file on private daemons; see ``docs/auditing.md``.

    ``trainers``: 2, or the world size. ``batch_sizes`` go round among the trainers.

    Raises: AssertionError with the report where a rule is broken; AuditFailed where the audit could
    not be carried out.
    """
    request = AuditRequest(
        Path(config), stream, trainers, tuple(batch_sizes), tuple(workers), epochs, world_size
    )
    report = audit(request)
    if not report.is_right:
        raise AssertionError(report.text())
    return report
