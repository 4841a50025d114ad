"""More slots for more trainers: when credits run short, an auto-sized stream grows by an arena."""

from __future__ import annotations

from loaderd_server.core.actions import Severity
from loaderd_server.core.arenas import ArenaDesk, ArenaRequest, Purpose
from loaderd_server.core.streams import Stream
from loaderd_server.core.turn import Turn

#: How long a refusal is remembered.
_REFUSAL_S = 30.0


class Growth:
    """Asks for arenas so that every trainer can have the credits it wants."""

    def __init__(self, turn: Turn, arenas: ArenaDesk) -> None:
        self._turn = turn
        self._arenas = arenas

    def ask(self, stream: Stream) -> bool:
        """Whether more slots are on their way; asks for them if they are short and can be had."""
        if stream.is_growing:
            return True
        missing = stream.ledger.wanted() - stream.ledger.most
        if missing <= 0 or stream.settings.slots is not None:
            return False
        affordable = (stream.share_bytes - stream.arena_bytes) // stream.slot_bytes
        count = min(missing, affordable)
        if count <= 0 or self._turn.now < stream.no_growth_until:
            return False
        stream.is_growing = True
        self._arenas.ask(ArenaRequest(stream, stream.slot_bytes, count, Purpose.CREDITS))
        return True

    def ready(self, stream: Stream) -> None:
        """The slots are there."""
        stream.is_growing = False

    def refused(self, stream: Stream, text: str) -> None:
        """They are not; trainers share what there is."""
        stream.is_growing = False
        stream.no_growth_until = self._turn.now + _REFUSAL_S
        self._turn.log(Severity.WARNING, f"stream {stream.name!r} cannot grow: {text}")
