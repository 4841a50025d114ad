"""The codec: golden frames, round trips, and refusal of everything else."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_protocol.codec import decode, encode
from loaderd_protocol.errors import ErrorCode, Failure, ProtocolError
from loaderd_protocol.messages import (
    Announce,
    Attach,
    BatchFailed,
    FailedSample,
    Ping,
    Release,
    Subscribe,
    Welcome,
)
from loaderd_protocol.rules import RULES, Channel, Message, Rule, Sender

ANNOUNCE = Announce(3, 1, 2, 5, 0, 7, 9, 4096, 8192, 64, b"layout", 8128, 12)

GOLDEN = [
    (Attach(1, "loaderd"), "9301 01 a76c6f6164657264"),
    (Ping(7), "92 05 07"),
    (Release(1, 2, 3), "c1000000 01000000 02000000 0300000000000000"),
    (Subscribe(1, "train", 0, 1, 2, 0), "9a 11 01 a5747261696e 00 01 02 00 ff 00 ff"),
    (
        ANNOUNCE,
        "dc0012 25 03 01 02 05 00 07 09 cd1000 cd2000 40 c4066c61796f7574 cd1fc0 0c 90 c2 "
        + "cb0000000000000000 c400",
    ),
]


def rule_of(message: Message) -> Rule:
    return next(rule for rule in RULES if rule.message is type(message))


@pytest.mark.parametrize(("message", "frame"), GOLDEN, ids=lambda v: type(v).__name__)
def test_frames_are_byte_for_byte_what_they_always_were(message: Message, frame: str) -> None:
    rule = rule_of(message)
    assert encode(message).hex() == frame.replace(" ", "")
    assert decode(bytes.fromhex(frame), rule.sender, rule.channel) == message


def test_nested_records_and_surrogates_survive() -> None:
    failure = Failure(ErrorCode.SAMPLE, 5, "builtins:ValueError", "bad \ud800", "tb", "worker 1")
    message = BatchFailed(1, 2, 3, 4, failure)
    assert decode(encode(message), Sender.DAEMON, Channel.ZEROMQ) == message
    skipped = (FailedSample(1, 9, "x"), FailedSample(2, 8, "y"))
    announce = Announce(1, 1, 1, 1, 1, 1, 1, 0, 0, 0, b"", 0, 0, skipped)
    assert decode(encode(announce), Sender.DAEMON, Channel.ZEROMQ) == announce


def test_a_field_that_the_sender_did_not_know_takes_its_default() -> None:
    fields = msgpack.unpackb(encode(ANNOUNCE))
    assert decode(msgpack.packb(fields[:-1]), Sender.DAEMON, Channel.ZEROMQ) == ANNOUNCE


def test_a_field_that_this_side_does_not_know_is_ignored() -> None:
    fields = [*msgpack.unpackb(encode(ANNOUNCE)), "later"]
    assert decode(msgpack.packb(fields), Sender.DAEMON, Channel.ZEROMQ) == ANNOUNCE


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "not msgpack"),
        (b"\xc0", "not \\[code"),
        (msgpack.packb([]), "not \\[code"),
        (msgpack.packb(["1"]), "not \\[code"),
        (msgpack.packb([True, 1]), "not \\[code"),
        (msgpack.packb([250]), "unknown message code 250"),
        (msgpack.packb([5]), "Ping needs at least 1 fields"),
        (msgpack.packb([5, "x"]), "Ping.number: expected int, got str 'x'"),
        (msgpack.packb([5, True]), "Ping.number: expected int, got bool True"),
        (msgpack.packb([2, 1, 1, b"t", "e", 1, ["a"]]), "Welcome is for a daemon"),
        (b"\xc1\x00", "Release of 2 bytes"),
        (b"\x91" * 5000, "not msgpack"),
    ],
)
def test_what_is_not_allowed_is_refused_with_the_reason(frame: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        decode(frame, Sender.TRAINER, Channel.LEASE)


def test_a_message_on_the_wrong_channel_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Ping is for a trainer on lease"):
        decode(encode(Ping(1)), Sender.TRAINER, Channel.ZEROMQ)
    with pytest.raises(ProtocolError, match="Release is for a trainer on lease"):
        decode(encode(Release(1, 1, 1)), Sender.TRAINER, Channel.ZEROMQ)


@given(st.binary(max_size=200), st.sampled_from(Sender), st.sampled_from(Channel))
def test_garbage_is_a_message_or_a_protocol_error(
    frame: bytes, sender: Sender, channel: Channel
) -> None:
    try:
        message = decode(frame, sender, channel)
    except ProtocolError:
        return
    assert rule_of(message).sender is sender


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(), st.binary()
)


@given(
    st.sampled_from([rule.code for rule in RULES]),
    st.lists(st.one_of(scalars, st.lists(scalars, max_size=4)), max_size=16),
)
def test_any_fields_for_any_code_are_a_message_or_a_protocol_error(
    code: int, fields: list[object]
) -> None:
    frame = msgpack.packb([code, *fields], unicode_errors="surrogatepass")
    rule = next(rule for rule in RULES if rule.code == code)
    try:
        message = decode(frame, rule.sender, rule.channel)
    except ProtocolError:
        return
    assert type(message) is rule.message


def test_a_welcome_lists_the_streams() -> None:
    message = Welcome(1, 4, b"t" * 16, "ipc://x", 10, ("train", "val"))
    assert decode(encode(message), Sender.DAEMON, Channel.LEASE) == message
