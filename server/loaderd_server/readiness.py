"""Which streams are served, which are not and why, and which are still being opened."""

from __future__ import annotations

from collections.abc import Iterable

from loaderd_server.core.actions import StreamOpened
from loaderd_server.units import show_size


class Readiness:
    """What the core said of each stream of the configuration."""

    def __init__(self, streams: Iterable[str]) -> None:
        self._awaited = set(streams)
        self.open: dict[str, StreamOpened] = {}
        #: Streams that cannot be served, with the reason.
        self.closed: dict[str, str] = {}

    @property
    def is_settled(self) -> bool:
        """Whether every stream is open or closed."""
        return not self._awaited

    def stream_opened(self, action: StreamOpened) -> None:
        """A stream is served from now on."""
        self._awaited.discard(action.stream)
        self.open[action.stream] = action

    def stream_closed(self, stream: str, text: str) -> None:
        """A stream cannot be served."""
        self._awaited.discard(stream)
        self.open.pop(stream, None)
        self.closed[stream] = text

    def streams_changed(self, removed: Iterable[str], added: Iterable[str]) -> None:
        """The configuration was read again."""
        for stream in removed:
            self._awaited.discard(stream)
            self.open.pop(stream, None)
            self.closed.pop(stream, None)
        self._awaited.update(added)

    def __str__(self) -> str:
        streams = ", ".join(
            f"{opened.stream} ({opened.slots} slots of {show_size(opened.slot_bytes)})"
            for opened in self.open.values()
        )
        closed = f"; closed: {', '.join(self.closed)}" if self.closed else ""
        return f"streams {streams or 'none'}{closed}"
