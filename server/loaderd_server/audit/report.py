"""What an audit checked and found, as lines for people and as a document for scripts."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from loaderd_server.audit.compare import Broken, Rule
from loaderd_server.audit.expected import SequenceKey


@dataclass(frozen=True, slots=True)
class OrderCheck:
    """An epoch's order: how often the indices are in it. ``must_be_once``: its sampler promises so."""

    epoch: int
    seed: int
    samples: int
    drawn: int
    distinct: int
    most_often: int
    must_be_once: bool

    @property
    def broken(self) -> tuple[Broken, ...]:
        """What is wrong with it."""
        is_once = self.drawn == self.distinct == self.samples
        if is_once or not self.must_be_once:
            return ()
        detail = f"{self.samples} samples, {self.drawn} drawn, {self.distinct} of them distinct"
        return (Broken(Rule.NOT_ONCE, detail=detail),)

    def text(self) -> str:
        """One line."""
        head = f"epoch {self.epoch}, seed {self.seed}: {self.drawn} samples"
        if self.drawn == self.distinct == self.samples:
            return f"{head}, each index once"
        return f"{head}, {self.distinct} of {self.samples} indices, at most {self.most_often} times each"


@dataclass(frozen=True, slots=True)
class TrainerCheck:
    """What one trainer was given in one epoch. ``workers`` is 0 for a daemon that was running."""

    workers: int
    trainer: int
    epoch: int
    sequence: SequenceKey
    batch_size: int | None
    batches: int
    rows: int
    left_out: int
    errors: int
    whole: bool
    broken: tuple[Broken, ...] = ()

    def text(self) -> str:
        """One line, and one for each broken rule."""
        what = f"{self.batches} batches"
        if not self.whole:
            what += f", {self.rows} rows"
        if self.left_out:
            what += f", {self.left_out} samples left out as failed"
        if self.errors:
            what += f", {self.errors} batches failed"
        verdict = "NOT as the reference has them" if self.broken else "all equal in order"
        broken = "".join(f"\n    BROKEN {self._place()}: {found.text()}" for found in self.broken)
        return f"  {self._who()}: {what}, {verdict}{broken}"

    def _who(self) -> str:
        told = [f"batch {self.batch_size or 'by the sampler'}"]
        if self.sequence.world_size > 1:
            told.append(f"rank {self.sequence.rank} of {self.sequence.world_size}")
        if self.workers:
            told.append(f"{self.workers} worker{'s' * (self.workers > 1)}")
        return f"trainer {self.trainer} ({', '.join(told)})"

    def _place(self) -> str:
        return f"trainer {self.trainer}, epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """Something that holds for several at once: ``claim`` where it does, ``broken`` where it does not."""

    claim: str
    broken: tuple[Broken, ...] = ()
    #: Which of the several each broken rule is of, in words.
    places: tuple[str, ...] = ()

    def text(self) -> str:
        """A line."""
        if not self.broken:
            return self.claim
        pairs = zip(self.places, self.broken, strict=True)
        return "\n".join(f"BROKEN {place}: {found.text()}" for place, found in pairs)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Everything that was checked."""

    stream: str
    mode: str
    orders: tuple[OrderCheck, ...]
    trainers: tuple[TrainerCheck, ...]
    groups: tuple[GroupCheck, ...]
    notes: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[Broken, ...]:
        """Every broken rule."""
        found = [check.broken for check in self.orders]
        found += [check.broken for check in self.trainers]
        found += [check.broken for check in self.groups]
        return tuple(broken for several in found for broken in several)

    @property
    def is_right(self) -> bool:
        """Whether every rule holds."""
        return not self.broken

    def text(self) -> str:
        """All lines."""
        lines = [f"audit of stream {self.stream!r} ({self.mode})"]
        for epoch in sorted({order.epoch for order in self.orders}):
            lines += self._epoch(epoch)
        lines += [group.text() for group in self.groups]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, self._verdict()])

    def json(self) -> str:
        """The document: every check, ``is_right`` and ``text``."""
        document = dataclasses.asdict(self)
        document.update(is_right=self.is_right, text=self.text())
        return json.dumps(document, default=lambda rule: rule.name.lower())

    def _epoch(self, epoch: int) -> list[str]:
        lines = []
        for order in self.orders:
            if order.epoch == epoch:
                lines.append(order.text())
                lines += [f"  BROKEN epoch {epoch}: {found.text()}" for found in order.broken]
        return lines + [check.text() for check in self.trainers if check.epoch == epoch]

    def _verdict(self) -> str:
        if not self.broken:
            return "every rule holds"
        return f"BROKEN: {len(self.broken)} findings"
