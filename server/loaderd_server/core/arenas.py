"""Arenas the core asked for: what each is for, and the slots they bring."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from loaderd_server.core.actions import MakeArena
from loaderd_server.core.streams import Stream
from loaderd_server.core.turn import Turn


class Purpose(Enum):
    """Why an arena was asked for."""

    OPENING = "opening"
    CREDITS = "credits"
    LARGE_BATCH = "large batch"


@dataclass(frozen=True, slots=True)
class ArenaRequest:
    """An arena on its way."""

    stream: Stream
    slot_bytes: int
    count: int
    purpose: Purpose


class ArenaDesk:
    """Numbers arenas and slots, and remembers what was asked."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._arenas = 0
        self._slots = 0
        self._asked: dict[int, ArenaRequest] = {}

    def ask(self, request: ArenaRequest) -> None:
        """Asks the shell; its answer comes to ``ready`` or ``refused``."""
        self._arenas += 1
        self._asked[self._arenas] = request
        request.stream.arena_bytes += request.slot_bytes * request.count
        self._turn.do(
            MakeArena(self._arenas, request.stream.name, request.slot_bytes, request.count)
        )

    def awaits(self, stream: Stream) -> bool:
        """Whether an arena of the stream is on its way."""
        return any(request.stream is stream for request in self._asked.values())

    def ready(self, arena: int) -> ArenaRequest | None:
        """The arena exists: its slots are in the stream's pool. None where nobody asked for it."""
        request = self._asked.pop(arena, None)
        if request is None:
            return None
        request.stream.pool.add(arena, request.slot_bytes, request.count, self._slots)
        self._slots += request.count
        request.stream.ledger.slots = request.stream.pool.base_count
        return request

    def refused(self, arena: int) -> ArenaRequest | None:
        """There is no memory for it. None where nobody asked for it."""
        request = self._asked.pop(arena, None)
        if request is not None:
            request.stream.arena_bytes -= request.slot_bytes * request.count
        return request
