"""Leases: which trainers are there, their cursors, and every announcement they have not released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from loaderd_server.core.sequences import Cursor
from loaderd_server.core.slots import Slot

#: Live cursors one trainer may have.
MOST_CURSORS = 64


class Lease:
    """One trainer, from its Hello to the end of its process or socket."""

    __slots__ = ("_held", "complaints", "cursors", "has_left", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        #: Cursors that have not ended, by sub.
        self.cursors: dict[int, Cursor] = {}
        #: (sub, slot, generation) -> who it was announced to, once for each announcement: after a
        #: new Start the same batch can be out twice, after Unsubscribe the sub can be another's.
        self._held: dict[tuple[int, int, int], list[tuple[Cursor, Slot | None]]] = {}
        #: It takes nothing more; what it said before on the other channel may still come in.
        self.has_left = False
        #: Wrong messages so far.
        self.complaints = 0

    def lend(self, cursor: Cursor, slot_number: int, generation: int, slot: Slot | None) -> None:
        """Notes an announcement; ``slot`` is None for one that carries no slot."""
        key = (cursor.sub, slot_number, generation)
        held = self._held.get(key)
        if held is None:
            self._held[key] = [(cursor, slot)]
        else:
            held.append((cursor, slot))

    def give_back(
        self, sub: int, slot_number: int, generation: int
    ) -> tuple[Cursor, Slot | None] | None:
        """The oldest announcement that a Release names, or None where there is none."""
        key = (sub, slot_number, generation)
        held = self._held.get(key)
        if held is None:
            return None
        loan = held.pop(0)
        if not held:
            del self._held[key]
        return loan

    def take_all(
        self, kept: Iterable[tuple[int, int, int]] = ()
    ) -> list[tuple[Cursor, Slot | None]]:
        """Everything not released but the ``kept`` (sub, slot, generation); the lease has no more."""
        keeping = Counter(kept)
        loans = []
        remaining = {}
        for key, held in self._held.items():
            loans += held[keeping[key] :]
            if keeping[key]:
                remaining[key] = held[: keeping[key]]
        self._held = remaining
        return loans
