"""An audit from its request to its report: wires reference, daemons, trainers and comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from loaderd_protocol.errors import AddressError
from loaderd_server.audit.checks import Checks, Run, told_workers
from loaderd_server.audit.daemons import serving
from loaderd_server.audit.drive import drive
from loaderd_server.audit.failure import AuditFailed
from loaderd_server.audit.plan import AuditRequest, TrainerPlan, stream_of, trainers_of
from loaderd_server.audit.reference_process import ReferenceProcess
from loaderd_server.audit.report import AuditReport
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.config import StreamConfig
from loaderd_server.config_file import ConfigError, read_config
from loaderd_server.plans import dataset_plans

Say = Callable[[str], None]


def audit(request: AuditRequest, say: Say = lambda _line: None) -> AuditReport:
    """Carries out an audit; ``say`` is told what is going on.

    Raises: AuditFailed where it cannot be carried out.
    """
    try:
        config = read_config(request.config_file)
        stream = stream_of(request, config)
        plans = dataset_plans(config, request.config_file.resolve().parent)
        plan = next(p for p in plans if any(s.name == request.stream for s in p.streams))
        say("building the dataset for the reference")
        with ReferenceProcess(plan, request.stream) as reference:
            trainers = trainers_of(request, stream, whole=reference.digests_whole)
            runs = tuple(_runs(request, stream, trainers, say))
            say("making the reference")
            return Checks(request, stream, reference, runs).report()
    except (ConfigError, AddressError) as error:
        raise AuditFailed(str(error), ExitCode.CONFIG) from None


def _runs(
    request: AuditRequest, stream: StreamConfig, trainers: Sequence[TrainerPlan], say: Say
) -> Iterator[Run]:
    seeded = stream.mode == "independent"
    for workers in (0,) if request.address else request.workers:
        with _daemon(request, workers) as address:
            say(f"{len(trainers)} trainers on {address}, {told_workers(workers)}")
            yield Run(workers, drive(request, address, trainers, seeded=seeded))


def _daemon(request: AuditRequest, workers: int) -> contextlib.AbstractContextManager[Path]:
    if request.address is not None:
        return contextlib.nullcontext(request.address)
    return serving(request.config_file, request.stream, workers)
