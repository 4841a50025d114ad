"""A trainer that speaks the protocol by hand: for wrong messages, and to see what the daemon says."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from loaderd_protocol.address import Address
from loaderd_protocol.codec import decode, encode
from loaderd_protocol.messages import (
    PROTOCOL_VERSION,
    ArenaAdded,
    Attach,
    Hello,
    Pong,
    Ready,
    Rejected,
    Welcome,
)
from loaderd_protocol.rules import Channel, Message, Sender

WAIT_S = 10.0


class RawTrainer:
    """A lease socket and a DEALER, and nothing that is done by itself."""

    def __init__(self, run_dir: Path) -> None:
        self.address = Address(run_dir)
        self.lease = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lease.settimeout(WAIT_S)
        self.lease.connect(os.fspath(self.address.attach_socket))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.dealer = self._context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        self.dealer.setsockopt(zmq.IDENTITY, b"\1" + os.urandom(15))
        self.dealer.connect(self.address.announce_endpoint)

    def attach(self, version: int = PROTOCOL_VERSION) -> Welcome:
        """Attaches; fails where the daemon does not welcome."""
        self.lease.send(encode(Attach(version, "raw")))
        answer = self.hear_lease()
        assert isinstance(answer, Welcome), answer
        return answer

    def hello(self, token: bytes) -> None:
        """Says Hello and waits for Ready."""
        self.say(Hello(token))
        assert isinstance(self.hear(), Ready)

    def say(self, message: Message) -> None:
        """Sends over ZeroMQ."""
        self.dealer.send(encode(message))

    def hear(self) -> Message:
        """The next message over ZeroMQ."""
        return decode(self.dealer.recv(), Sender.DAEMON, Channel.ZEROMQ)

    def hear_lease(self) -> Message | None:
        """The next message on the lease but for arenas (their descriptors are closed); None at its end."""
        while True:
            try:
                packet, ancillary, _flags, _ = self.lease.recvmsg(1 << 16, socket.CMSG_SPACE(64))
            except ConnectionResetError:  # it ended with packets of ours unread
                return None
            for _level, _kind, data in ancillary:
                descriptors = array.array("i")
                descriptors.frombytes(data)
                for descriptor in descriptors:
                    os.close(descriptor)
            if not packet:
                return None
            message = decode(packet, Sender.DAEMON, Channel.LEASE)
            if not isinstance(message, ArenaAdded):
                assert isinstance(message, Welcome | Rejected | Pong)
                return message

    def close(self) -> None:
        """Ends everything."""
        self.lease.close()
        self.dealer.close()
        self._context.term()


@contextmanager
def raw_trainer(run_dir: Path) -> Iterator[RawTrainer]:
    """A raw trainer that is closed at the end."""
    trainer = RawTrainer(run_dir)
    try:
        yield trainer
    finally:
        trainer.close()
