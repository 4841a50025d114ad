"""The checks of an audit: what was given on each daemon, held against the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from loaderd_server.audit.compare import Broken, Rule, compare, compare_queue, first_difference
from loaderd_server.audit.drive import TrainerRun
from loaderd_server.audit.expected import EpochReference, ReferenceRequest, SequenceKey, expect
from loaderd_server.audit.plan import AuditRequest, draws_each_once
from loaderd_server.audit.reference_process import ReferenceProcess
from loaderd_server.audit.report import AuditReport, GroupCheck, OrderCheck, TrainerCheck
from loaderd_server.config import StreamConfig


@dataclass(frozen=True, slots=True)
class Run:
    """All trainers on one daemon; ``workers`` is 0 for one that was running."""

    workers: int
    trainers: tuple[TrainerRun, ...]


class Checks:
    """Holds what was given against the reference."""

    def __init__(
        self,
        request: AuditRequest,
        stream: StreamConfig,
        reference: ReferenceProcess,
        runs: tuple[Run, ...],
    ) -> None:
        self._request, self._stream = request, stream
        self._reference, self._runs = reference, runs
        self._made: dict[ReferenceRequest, EpochReference] = {}

    def report(self) -> AuditReport:
        """Everything there is to check."""
        if self._stream.mode == "queue":
            checks, groups = self._trainers_of_queue(), self._queues()
        else:
            checks, groups = self._trainers(), (*self._across_trainers(), *self._across_runs())
        orders = self._orders()
        notes = self._disagreements()
        report = AuditReport(self._request.stream, self._stream.mode, orders, checks, groups, notes)
        if all(broken.rule is not Rule.WRONG_BYTES for broken in report.broken):
            return report
        return replace(report, notes=(*notes, *self._not_deterministic()))

    def _made_for(
        self, sequence: SequenceKey, epoch: int, failed: tuple[int, ...]
    ) -> EpochReference:
        asked = ReferenceRequest(sequence, epoch, failed)
        if asked not in self._made:
            self._made[asked] = self._reference.epoch(asked)
        return self._made[asked]

    # --- one trainer, one epoch -------------------------------------------------------------

    def _trainers(self) -> tuple[TrainerCheck, ...]:
        return tuple(
            self._check(run, trainer, epoch)
            for run in self._runs
            for epoch in range(self._request.epochs)
            for trainer in run.trainers
        )

    def _check(self, run: Run, trainer: TrainerRun, epoch: int) -> TrainerCheck:
        made = self._made_for(trainer.plan.sequence, epoch, trainer.failed(epoch))
        broken = compare(expect(made, trainer.plan.cut), trainer.epoch(epoch))
        return self._told(run, trainer, epoch, (*broken, *self._ended(trainer, epoch)))

    def _told(
        self, run: Run, trainer: TrainerRun, epoch: int, broken: tuple[Broken, ...]
    ) -> TrainerCheck:
        seen = trainer.epoch(epoch)
        plan = trainer.plan
        return TrainerCheck(
            run.workers, plan.number, epoch, plan.sequence, plan.cut.size,
            batches=sum(bool(batch.digests) for batch in seen),
            rows=sum(len(batch.digests) for batch in seen),
            left_out=len(trainer.failed(epoch)),
            errors=sum(bool(batch.error) for batch in seen),
            whole=plan.cut.whole, broken=broken,
        )  # fmt: skip

    def _ended(self, trainer: TrainerRun, epoch: int) -> tuple[Broken, ...]:
        """A trainer's own end is told with its last epoch."""
        if not trainer.ended or epoch != self._request.epochs - 1:
            return ()
        return (Broken(Rule.ENDED, detail=trainer.ended),)

    # --- queues -----------------------------------------------------------------------------

    def _trainers_of_queue(self) -> tuple[TrainerCheck, ...]:
        return tuple(
            self._told(run, trainer, epoch, self._ended(trainer, epoch))
            for run in self._runs
            for epoch in range(self._request.epochs)
            for trainer in run.trainers
        )

    def _queues(self) -> tuple[GroupCheck, ...]:
        return tuple(self._queue(run) for run in self._runs)

    def _queue(self, run: Run) -> GroupCheck:
        """The trainers' batches together; epochs too, as trainers need not begin one at once."""
        expected = []
        for epoch in range(self._request.epochs):
            failed = sorted({p for trainer in run.trainers for p in trainer.failed(epoch)})
            first = run.trainers[0].plan
            made = self._made_for(first.sequence, epoch, tuple(failed))
            expected.append(expect(made, first.cut))
        seen = [batch for trainer in run.trainers for batch in trainer.seen]
        broken = compare_queue(expected, seen)
        batches = sum(len(epoch.batches) for epoch in expected)
        claim = f"{told_workers(run.workers)}: {batches} batches, each to exactly one trainer"
        return GroupCheck(claim, broken, tuple("the queue" for _ in broken))

    # --- trainers and runs beside each other ------------------------------------------------

    def _across_trainers(self) -> Iterator[GroupCheck]:
        for run in self._runs:
            pairs = [
                (f"trainers {a.plan.number} and {b.plan.number}", a, b)
                for a, b in pairwise(sorted(run.trainers, key=lambda t: t.plan.sequence.rank))
                if a.plan.sequence == b.plan.sequence
            ]
            claim = f"{told_workers(run.workers)}: trainers of one sequence were given equal rows"
            if pairs:
                yield self._group(claim, pairs)

    def _across_runs(self) -> Iterator[GroupCheck]:
        for first, second in pairwise(self._runs):
            between = f"{first.workers} and {second.workers} workers"
            pairs = [
                (f"trainer {a.plan.number} with {between}", a, b)
                for a, b in zip(first.trainers, second.trainers, strict=True)
            ]
            yield self._group(f"{between}: trainers were given equal bytes", pairs)

    def _group(self, claim: str, pairs: Sequence[tuple[str, TrainerRun, TrainerRun]]) -> GroupCheck:
        found = [
            (f"{name}, epoch {epoch}", difference)
            for name, first, second in pairs
            for epoch in range(self._request.epochs)
            if (difference := _difference(first, second, epoch)) is not None
        ]
        return GroupCheck(claim, tuple(b for _, b in found), tuple(place for place, _ in found))

    # --- the order, and the reference itself ------------------------------------------------

    def _orders(self) -> tuple[OrderCheck, ...]:
        seeds_first = {
            (asked.epoch, asked.sequence.seed): made for asked, made in self._made.items()
        }
        return tuple(
            OrderCheck(
                epoch, seed, made.samples, made.drawn, made.distinct, made.most_often,
                draws_each_once(self._stream),
            )
            for (epoch, seed), made in sorted(seeds_first.items(), key=lambda item: item[0])
        )  # fmt: skip

    def _disagreements(self) -> tuple[str, ...]:
        notes = []
        for asked, made in self._made.items():
            where = f"epoch {asked.epoch}: "
            notes += [
                f"{where}fails in the reference, not in the loader: {t}" for t in made.left_out
            ]
            failures = [batch.failure for batch in made.batches if batch.failure]
            notes += [f"{where}a batch fails in the reference too: {text}" for text in failures]
        return tuple(dict.fromkeys(notes))

    def _not_deterministic(self) -> tuple[str, ...]:
        """Bytes are wrong: whether the dataset gives the same ones twice."""
        for asked, made in self._made.items():
            index = _first_changed(made, self._reference.epoch(asked))
            if index is not None:
                note = (
                    f"the dataset is not deterministic: index {index}, made twice in one process under "
                    f"the same keys, gave different bytes. Draw from the generators that loaderd "
                    f"seeds (random, numpy.random, torch, or the transform's rng)"
                )
                return (note,)
        return ()


def told_workers(count: int) -> str:
    if not count:
        return "the running daemon"
    return "1 worker" if count == 1 else f"{count} workers"


def _difference(first: TrainerRun, second: TrainerRun, epoch: int) -> Broken | None:
    """None too where other samples or batches failed: the comparison with the reference tells then."""
    batches = (*first.epoch(epoch), *second.epoch(epoch))
    if any(b.error for b in batches) or first.failed(epoch) != second.failed(epoch):
        return None
    return first_difference(first.epoch(epoch), second.epoch(epoch))


def _first_changed(first: EpochReference, second: EpochReference) -> int | None:
    for ours, theirs in zip(first.batches, second.batches, strict=False):
        if ours.digests == theirs.digests:
            continue
        pairs = zip(ours.indices, ours.digests, theirs.digests, strict=False)
        return next((index for index, a, b in pairs if a != b), ours.indices[0])
    return None
