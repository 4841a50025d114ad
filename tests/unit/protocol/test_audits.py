"""The lines that an audit's trainer says."""

from __future__ import annotations

import pytest

from loaderd_protocol.audits import SeenBatch, decode_seen, encode_seen
from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.messages import FailedSample


@pytest.mark.parametrize(
    "seen",
    [
        SeenBatch(0, ("aa", "bb")),
        SeenBatch(3, (), "ValueError: two\nlines"),
        SeenBatch(1, ("aa",), "", (FailedSample(4, 17, "broken"),)),
    ],
)
def test_a_batch_goes_through_a_line(seen: SeenBatch) -> None:
    line = encode_seen(seen)
    assert "\n" not in line
    assert decode_seen(line) == seen


@pytest.mark.parametrize("line", ["", "warning: something", "[1]", '["0", []]'])
def test_what_is_no_such_line_is_refused(line: str) -> None:
    with pytest.raises(ProtocolError):
        decode_seen(line)
