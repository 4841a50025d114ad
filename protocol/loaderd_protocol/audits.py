"""What a trainer of ``loaderd audit`` says on its stdout: READY, then a line of JSON a batch."""

from __future__ import annotations

import json
from dataclasses import dataclass

from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.messages import FailedSample
from loaderd_protocol.records import from_array, to_array

#: The trainer has subscribed and waits for a line on its stdin.
READY = "ready"


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """What ``next(iterator)`` gave.

    ``digests``: of each row, or one of the whole batch; none where it raised, which is then in
    ``error``. ``failed``: samples that were reported as left out since the line before. A line with
    neither digests nor error only reports these.
    """

    epoch: int
    digests: tuple[str, ...]
    error: str = ""
    failed: tuple[FailedSample, ...] = ()


def encode_seen(seen: SeenBatch) -> str:
    """The line, without its end."""
    return json.dumps(to_array(seen))


def decode_seen(line: str) -> SeenBatch:
    """The batch that a line tells of.

    Raises: ProtocolError.
    """
    try:
        array = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"no line of an audit's trainer: {line[:80]!r} ({error})") from None
    return from_array(SeenBatch, array)
