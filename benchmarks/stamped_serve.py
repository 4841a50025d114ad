"""``loaderd serve`` that notes when each announcement is handed to ZeroMQ.

Run: ``python -m benchmarks.stamped_serve STAMPS serve --config ...``. The product has no hook for
this: pyzmq's ``Socket.send`` is wrapped here, before the daemon is imported. The stamps are written
to STAMPS as JSON rows [epoch, batch, CLOCK_MONOTONIC ns before the send, bytes] when it stops.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import zmq

from loaderd_protocol.codec import decode
from loaderd_protocol.messages import Announce
from loaderd_protocol.rules import RULES, Channel, Sender

_CODE = next(rule.code for rule in RULES if rule.message is Announce)
_ARRAY16 = 0xDC
#: Time and frame of every announcement; decoded at the end, to cost the daemon nothing meanwhile.
_sent: list[tuple[int, bytes]] = []
_plain_send = zmq.Socket.send


def _stamping_send(socket: Any, data: Any, *args: Any, **options: Any) -> Any:
    # A msgpack array: of up to 15 fields with a head of one byte, of more with three.
    if len(data) > 4 and data[3 if data[0] == _ARRAY16 else 1] == _CODE and data[0] >= 0x90:
        _sent.append((time.monotonic_ns(), bytes(data)))
    return _plain_send(socket, data, *args, **options)


def main() -> None:
    """Serves with the arguments behind the first."""
    stamps = Path(sys.argv.pop(1))
    zmq.Socket.send = _stamping_send  # type: ignore[assignment,method-assign]
    from loaderd_server.__main__ import main as serve

    try:
        serve()
    finally:
        rows = []
        for at, frame in _sent:
            message = decode(frame, Sender.DAEMON, Channel.ZEROMQ)
            assert isinstance(message, Announce)
            rows.append([message.epoch, message.batch, at, len(frame)])
        stamps.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
