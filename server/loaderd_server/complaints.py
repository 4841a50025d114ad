"""Log lines about misbehaving peers, not more of them than a person can read."""

from __future__ import annotations

import logging

log = logging.getLogger("loaderd.peers")

#: A kind of complaint is logged at most once in so long; what was held back is counted.
_EVERY_S = 10.0


class Complaints:
    """Remembers when it last said what."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}

    def say(self, kind: str, text: str, now: float) -> None:
        """Logs ``text``, or counts it where its kind was logged just before."""
        last, held_back = self._said.get(kind, (-_EVERY_S, 0))
        if now - last < _EVERY_S:
            self._said[kind] = (last, held_back + 1)
            return
        more = f" (and {held_back} more like it before)" if held_back else ""
        log.warning("%s%s", text, more)
        self._said[kind] = (now, 0)
