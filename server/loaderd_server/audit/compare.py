"""What was given, held against what must be given: each rule that is broken is found and named. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from loaderd_protocol.audits import SeenBatch
from loaderd_server.audit.expected import Expected, Unit


class Rule(Enum):
    """A way in which a rule can be broken, in words."""

    WRONG_BYTES = "bytes that no sample of this epoch has"
    REPEATED = "given more often than the order has it"
    LOST = "never given"
    SHORT = "the epoch ended early"
    ORDER = "given in another order"
    CUT = "a batch of another size"
    ERROR = "a batch failed that the reference can make"
    NO_ERROR = "a batch was given that the reference cannot make"
    UNEQUAL = "not equal to what another one was given"
    NOT_ONCE = "the order does not hold each index once"
    ENDED = "the trainer ended by itself"


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that is broken: the first place, and how many there are of its kind.

    ``index`` is the dataset's, -1 where none is known.
    """

    rule: Rule
    position: int = -1
    index: int = -1
    expected: str = ""
    found: str = ""
    count: int = 1
    detail: str = ""

    def text(self) -> str:
        """One line."""
        parts = [self.rule.value]
        if self.position >= 0:
            parts.append(f"position {self.position}")
        if self.index >= 0:
            parts.append(f"index {self.index}")
        if self.expected or self.found:
            parts.append(f"expected {self.expected or 'nothing'}, found {self.found or 'nothing'}")
        if self.count > 1:
            parts.append(f"{self.count} of this kind")
        if self.detail:
            parts.append(self.detail)
        return "; ".join(parts)


def compare(expected: Expected, seen: Sequence[SeenBatch]) -> tuple[Broken, ...]:
    """One trainer's epoch: each unit once, in order, in batches of the right size."""
    errors = [batch.error for batch in seen if batch.error]
    found = [digest for batch in seen for digest in batch.digests]
    units = expected.units
    broken = _errors(expected, errors)
    if found != [unit.digest for unit in units]:
        return (*broken, *_sequence(units, found))
    return (*broken, *_sizes(expected, [len(batch.digests) for batch in seen if batch.digests]))


def compare_queue(expected: Sequence[Expected], seen: Sequence[SeenBatch]) -> tuple[Broken, ...]:
    """All trainers' batches of all epochs of a queue: each batch once, to whomever.

    A batch is looked for by its rows, as trainers are not told its number.
    """
    errors = [batch.error for batch in seen if batch.error]
    broken: list[Broken] = []
    for epoch in expected:
        broken += _errors(epoch, errors)
    must = [batch for epoch in expected for batch in epoch.batches]
    given = Counter(batch.digests for batch in seen if batch.digests)
    lost = []
    for units in must:
        digests = tuple(unit.digest for unit in units)
        if given[digests]:
            given[digests] -= 1
        else:
            lost.append(units[0])
    known = {tuple(unit.digest for unit in units): units[0] for units in must}
    extra = list(given.elements())
    broken += _first_lost(lost)
    broken += _first_repeated([known[digests] for digests in extra if digests in known])
    unknown = [digests for digests in extra if digests not in known]
    if unknown:
        broken.append(Broken(Rule.WRONG_BYTES, found=unknown[0][0], count=len(unknown)))
    return tuple(broken)


def first_difference(first: Sequence[SeenBatch], second: Sequence[SeenBatch]) -> Broken | None:
    """Where two that must be given equal rows were not, however they cut them into batches.

    One that drops a last batch of its own size may have fewer.
    """
    ours = [digest for batch in first for digest in batch.digests]
    theirs = [digest for batch in second for digest in batch.digests]
    differing = [p for p, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    if not differing:
        return None
    place = differing[0]
    return Broken(
        Rule.UNEQUAL, place, expected=ours[place], found=theirs[place], count=len(differing)
    )


def _errors(expected: Expected, errors: Sequence[str]) -> tuple[Broken, ...]:
    if errors and not expected.errors:
        return (Broken(Rule.ERROR, count=len(errors), detail=errors[0]),)
    if expected.errors and not errors:
        return (Broken(Rule.NO_ERROR, count=len(expected.errors), detail=expected.errors[0]),)
    return ()


def _sequence(units: Sequence[Unit], found: Sequence[str]) -> tuple[Broken, ...]:
    known = {unit.digest for unit in units}
    wrong = [place for place, digest in enumerate(found) if digest not in known]
    lost = _missing(units, found)
    repeated = _missing_of(found, units)
    if not wrong and not lost and not repeated:
        return (_first_swap(units, found),)
    broken: list[Broken] = []
    if wrong:
        broken.append(_first_wrong(units, found, wrong))
        lost = _beyond_wrong(units, wrong, lost)
    if _is_prefix(units, found):
        return (
            Broken(
                Rule.SHORT, len(found), units[len(found)].index, units[len(found)].digest,
                count=len(units) - len(found),
            ),
        )  # fmt: skip
    return (*broken, *_first_lost(lost), *_first_repeated(repeated))


def _missing(units: Sequence[Unit], found: Sequence[str]) -> list[Unit]:
    """Units that were not given, or not often enough."""
    left = Counter(found)
    lost = []
    for unit in units:
        if left[unit.digest]:
            left[unit.digest] -= 1
        else:
            lost.append(unit)
    return lost


def _missing_of(found: Sequence[str], units: Sequence[Unit]) -> list[Unit]:
    """What was given more often than expected, at the place where it was given once too often."""
    left = Counter(unit.digest for unit in units)
    index_of = {unit.digest: unit.index for unit in units}
    repeated = []
    for place, digest in enumerate(found):
        if left[digest]:
            left[digest] -= 1
        elif digest in index_of:
            repeated.append(Unit(digest, index_of[digest], place))
    return repeated


def _beyond_wrong(units: Sequence[Unit], wrong: Sequence[int], lost: list[Unit]) -> list[Unit]:
    """A unit whose place holds wrong bytes was given, if wrongly: it is not lost as well."""
    replaced = {units[place].position for place in wrong if place < len(units)}
    return [unit for unit in lost if unit.position not in replaced]


def _is_prefix(units: Sequence[Unit], found: Sequence[str]) -> bool:
    return len(found) < len(units) and list(found) == [u.digest for u in units[: len(found)]]


def _first_wrong(units: Sequence[Unit], found: Sequence[str], wrong: Sequence[int]) -> Broken:
    place = wrong[0]
    unit = units[place] if place < len(units) else None
    index, digest = (unit.index, unit.digest) if unit else (-1, "")
    return Broken(Rule.WRONG_BYTES, place, index, digest, found[place], len(wrong))


def _first_swap(units: Sequence[Unit], found: Sequence[str]) -> Broken:
    differing = [p for p, unit in enumerate(units) if unit.digest != found[p]]
    place = differing[0]
    index_of = {unit.digest: unit.index for unit in units}
    return Broken(
        Rule.ORDER, place, units[place].index, units[place].digest, found[place], len(differing),
        f"index {index_of[found[place]]} stands there",
    )  # fmt: skip


def _first_lost(lost: Sequence[Unit]) -> tuple[Broken, ...]:
    if not lost:
        return ()
    first = lost[0]
    return (Broken(Rule.LOST, first.position, first.index, first.digest, count=len(lost)),)


def _first_repeated(repeated: Sequence[Unit]) -> tuple[Broken, ...]:
    if not repeated:
        return ()
    first = repeated[0]
    return (
        Broken(Rule.REPEATED, first.position, first.index, found=first.digest, count=len(repeated)),
    )


def _sizes(expected: Expected, found: Sequence[int]) -> tuple[Broken, ...]:
    sizes = [len(batch) for batch in expected.batches]
    for place, (must, is_) in enumerate(zip(sizes, found, strict=False)):
        if must != is_:
            return (Broken(Rule.CUT, detail=f"batch {place} has {is_} rows, not {must}"),)
    return ()
