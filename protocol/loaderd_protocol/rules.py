"""The table of the protocol: each message's code, who may send it, and on which channel.

``PROTOCOL.md`` has the same table; a test holds the two together. A code never changes its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from loaderd_protocol.messages import (
    Announce,
    ArenaAdded,
    AskStatus,
    Attach,
    BatchEmpty,
    BatchFailed,
    Done,
    EpochEnded,
    EpochStarted,
    Granted,
    Hello,
    Leave,
    Ping,
    Pong,
    Ready,
    Refused,
    Rejected,
    Release,
    Start,
    Status,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)


class Sender(Enum):
    """Who may send a message."""

    TRAINER = "trainer"
    DAEMON = "daemon"


class Channel(Enum):
    """The attach socket (SOCK_SEQPACKET, one message a packet) or ZeroMQ (one frame a message)."""

    LEASE = "lease"
    ZEROMQ = "zeromq"


Message = (
    Attach | Welcome | Rejected | ArenaAdded | Ping | Pong | Release | Leave | Done | Hello | Subscribe
    | Start | Unsubscribe | AskStatus | Ready | Subscribed | Refused | Granted | EpochStarted | Announce
    | BatchFailed | BatchEmpty | Unsubscribed | Status | EpochEnded
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the protocol: a message's code, who may send it, and on which channel."""

    code: int
    message: type[Message]
    sender: Sender
    channel: Channel


RULES: tuple[Rule, ...] = (
    Rule(1, Attach, Sender.TRAINER, Channel.LEASE),
    Rule(2, Welcome, Sender.DAEMON, Channel.LEASE),
    Rule(3, Rejected, Sender.DAEMON, Channel.LEASE),
    Rule(4, ArenaAdded, Sender.DAEMON, Channel.LEASE),
    Rule(5, Ping, Sender.TRAINER, Channel.LEASE),
    Rule(6, Pong, Sender.DAEMON, Channel.LEASE),
    Rule(7, Release, Sender.TRAINER, Channel.LEASE),
    Rule(8, Leave, Sender.TRAINER, Channel.LEASE),
    Rule(9, Done, Sender.TRAINER, Channel.LEASE),
    Rule(16, Hello, Sender.TRAINER, Channel.ZEROMQ),
    Rule(17, Subscribe, Sender.TRAINER, Channel.ZEROMQ),
    Rule(18, Start, Sender.TRAINER, Channel.ZEROMQ),
    Rule(19, Unsubscribe, Sender.TRAINER, Channel.ZEROMQ),
    Rule(20, AskStatus, Sender.TRAINER, Channel.ZEROMQ),
    Rule(32, Ready, Sender.DAEMON, Channel.ZEROMQ),
    Rule(33, Subscribed, Sender.DAEMON, Channel.ZEROMQ),
    Rule(34, Refused, Sender.DAEMON, Channel.ZEROMQ),
    Rule(35, Granted, Sender.DAEMON, Channel.ZEROMQ),
    Rule(36, EpochStarted, Sender.DAEMON, Channel.ZEROMQ),
    Rule(37, Announce, Sender.DAEMON, Channel.ZEROMQ),
    Rule(38, BatchFailed, Sender.DAEMON, Channel.ZEROMQ),
    Rule(39, BatchEmpty, Sender.DAEMON, Channel.ZEROMQ),
    Rule(40, Unsubscribed, Sender.DAEMON, Channel.ZEROMQ),
    Rule(41, Status, Sender.DAEMON, Channel.ZEROMQ),
    Rule(42, EpochEnded, Sender.DAEMON, Channel.ZEROMQ),
)
