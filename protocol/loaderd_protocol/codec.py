"""Messages to frames and back. Nothing is unpickled or evaluated; every field is checked."""

from __future__ import annotations

import struct

import msgpack

from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.messages import Release
from loaderd_protocol.records import from_array, to_array
from loaderd_protocol.rules import RULES, Channel, Message, Rule, Sender

#: No frame of the protocol is longer; a longer one is refused unread.
MAX_FRAME_BYTES = 64 * 1024 * 1024
#: First byte of a Release frame. No msgpack array starts with it, so the two never meet.
_RELEASE_MARK = 0xC1
_RELEASE = struct.Struct("<BxxxIIQ")

_RULE_BY_TYPE: dict[type, Rule] = {rule.message: rule for rule in RULES}
_RULE_BY_CODE: dict[int, Rule] = {rule.code: rule for rule in RULES}


def encode(message: Message) -> bytes:
    """The frame of a message: ``[code, field, ...]`` in msgpack, or 20 fixed bytes for Release."""
    if type(message) is Release:
        return _RELEASE.pack(_RELEASE_MARK, message.sub, message.slot, message.generation)
    fields = to_array(message)
    fields.insert(0, _RULE_BY_TYPE[type(message)].code)
    frame = msgpack.packb(fields, use_bin_type=True, unicode_errors="surrogatepass")
    assert isinstance(frame, bytes)
    return frame


def decode(frame: bytes, sender: Sender, channel: Channel) -> Message:
    """The message in a frame that came from ``sender`` on ``channel``.

    Raises: ProtocolError for anything the protocol does not allow there.
    """
    if frame[:1] == b"\xc1":
        return _decode_release(frame, sender, channel)
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {len(frame)} bytes; the limit is {MAX_FRAME_BYTES}")
    try:
        fields = msgpack.unpackb(
            frame, raw=False, strict_map_key=False, unicode_errors="surrogatepass"
        )
    except Exception as error:  # noqa: BLE001 - msgpack raises many kinds on garbage, RecursionError among them
        raise ProtocolError(f"frame of {len(frame)} bytes is not msgpack: {error}") from None
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise ProtocolError(f"frame of {len(frame)} bytes is not [code, field, ...]")
    rule = _RULE_BY_CODE.get(fields[0])
    if rule is None:
        raise ProtocolError(f"unknown message code {fields[0]}")
    _check_allowed(rule, sender, channel)
    return from_array(rule.message, fields[1:])


def _decode_release(frame: bytes, sender: Sender, channel: Channel) -> Release:
    _check_allowed(_RULE_BY_TYPE[Release], sender, channel)
    if len(frame) != _RELEASE.size:
        raise ProtocolError(f"Release of {len(frame)} bytes; it has {_RELEASE.size}")
    _, sub, slot, generation = _RELEASE.unpack(frame)
    return Release(sub, slot, generation)


def _check_allowed(rule: Rule, sender: Sender, channel: Channel) -> None:
    if rule.sender is not sender or rule.channel is not channel:
        raise ProtocolError(
            f"{rule.message.__name__} is for a {rule.sender.value} on {rule.channel.value}, "
            f"it came from a {sender.value} on {channel.value}"
        )
