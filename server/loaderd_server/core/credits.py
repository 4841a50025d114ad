"""Credits: how many batches each trainer of a stream may have in hand, so that one more can be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loaderd_server.core.sequences import Cursor

#: Views a trainer may keep beside what is prefetched: the batch at work, and the one before it.
VIEWS = 2
MOST_PREFETCH = 64
#: How long a trainer whose grant was lowered may be without a credit and without a release. Longer
#: than most training steps: those who just work on gives back what was taken.
STRANDED_S = 5.0


@dataclass(frozen=True, slots=True)
class Changes:
    """Whose credits a settlement changed, and who got the first ones."""

    changed: tuple[Cursor, ...]
    admitted: tuple[Cursor, ...]


class Ledger:
    """The credits of one stream.

    The rule: the sum over trainers of what each may take or keep (``cost``) is at most
    slots - workers - 1. Then what trainers have in hand, and what is made for them within their
    credits, leaves workers + 1 slots to make the next batch in, whatever the trainers do.

    A trainer may keep views of all but one of the batches it was granted, for as long as it likes.
    So a lowered grant is taken back only as far as batches are released, and always leaves it one
    credit beyond those it keeps: with that one, copied and released at once, it goes on. A trainer
    that is out of credits for STRANDED_S after its grant was lowered gets it.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        #: Slots of the common size.
        self.slots = 0
        #: Who has credits, in order of arrival.
        self.admitted: list[Cursor] = []
        #: Who waits for the first credit, in order of arrival.
        self.waiting: list[Cursor] = []
        #: In hand of cursors that have ended.
        self.orphans = 0
        #: Whether someone has less than it wants, or waits.
        self.is_tight = False

    @property
    def most(self) -> int:
        """The most credits that may be out."""
        return max(0, self.slots - self._workers - 1)

    def used(self) -> int:
        """What all trainers may take or keep."""
        return self.orphans + sum(cost(c) for c in self.admitted)

    def wanted(self) -> int:
        """Credits that would please everyone."""
        return self.orphans + sum(c.want for c in self.admitted) + sum(c.want for c in self.waiting)

    def join(self, cursor: Cursor) -> None:
        """A newcomer waits for its first credit until a settlement admits it."""
        self.waiting.append(cursor)
        self.is_tight = True

    def leave(self, cursor: Cursor) -> None:
        """A cursor ended; what it has in hand stays counted until it is released."""
        if cursor in self.waiting:
            self.waiting.remove(cursor)
        if cursor in self.admitted:
            self.admitted.remove(cursor)
            self.orphans += cursor.outstanding
        cursor.grant = 0

    def settle(self, *, may_take: bool) -> Changes:
        """Hands out what is free; takes from those above a fair share only if ``may_take``."""
        everyone = [*self.admitted, *self.waiting]
        shares = fair_shares([c.want for c in everyone], self.most - self.orphans)
        before = [c.grant for c in everyone]
        if may_take:
            for cursor, share in zip(self.admitted, shares, strict=False):
                _lower(cursor, share)
        targets = dict(zip(map(id, everyone), shares, strict=True))
        admitted = self._admit(targets)
        self._raise(targets)
        self.is_tight = bool(self.waiting) or any(c.grant < c.want for c in self.admitted)
        changed = [
            cursor
            for cursor, grant in zip(everyone, before, strict=True)
            if cursor.grant != grant and cursor not in admitted
        ]
        return Changes(tuple(changed), tuple(admitted))

    def _admit(self, targets: dict[int, int]) -> list[Cursor]:
        admitted = []
        for cursor in tuple(self.waiting):
            free = self.most - self.used()
            if free < 1:
                break
            cursor.grant = cursor.promised = min(free, targets[id(cursor)])
            cursor.deadline = None
            self.waiting.remove(cursor)
            self.admitted.append(cursor)
            admitted.append(cursor)
        return admitted

    def _raise(self, targets: dict[int, int]) -> None:
        free = self.most - self.used()
        for cursor in sorted(self.admitted, key=lambda c: c.grant):
            paid = cost(cursor)
            grant = min(targets[id(cursor)], paid + free)
            if grant > cursor.grant:
                cursor.grant = grant
                cursor.promised = max(cursor.promised, grant)
                free -= max(0, grant - paid)


def cost(cursor: Cursor) -> int:
    """Credits that a trainer may take, or needs to go on with all the views it may keep."""
    return max(cursor.grant, min(cursor.outstanding + 1, cursor.promised))


def take_back_promise(cursor: Cursor) -> None:
    """What it was granted before, and has no batch in hand for, is given back."""
    cursor.promised = max(cursor.grant, min(cursor.promised, cursor.outstanding + 1))


def is_stranded(cursor: Cursor) -> bool:
    """Whether it has no credit left, by a grant lower than it may have views."""
    return cursor.grant <= cursor.outstanding < cursor.promised


def lend(cursor: Cursor) -> None:
    """One credit beyond what it keeps; the ledger has always counted it."""
    cursor.grant = min(cursor.outstanding + 1, cursor.promised)
    cursor.is_lent = True
    cursor.stranded_since = None


def _lower(cursor: Cursor, share: int) -> None:
    if cursor.outstanding + 1 <= share:
        cursor.is_lent = False
    floor = min(cursor.outstanding + 1, cursor.promised) if cursor.is_lent else 1
    cursor.grant = min(cursor.grant, max(share, floor))
    take_back_promise(cursor)


def fair_shares(wants: Sequence[int], available: int) -> list[int]:
    """Shares of ``available`` with the least as large as can be; never under 1, never over the want.

    What does not divide goes to those who came first.
    """
    shares = [1] * len(wants)
    left = available - len(wants)
    while left > 0:
        hungry = [i for i, want in enumerate(wants) if shares[i] < want]
        if not hungry:
            break
        step = max(1, left // len(hungry))
        for i in hungry[:left]:
            more = min(step, wants[i] - shares[i], left)
            shares[i] += more
            left -= more
    return shares
