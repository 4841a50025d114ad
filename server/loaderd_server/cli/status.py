"""``loaderd status``: what a running daemon is doing, as tables or JSON."""

from __future__ import annotations

import os
import socket
import sys

import zmq

from loaderd_protocol.address import Address, resolve
from loaderd_protocol.codec import decode, encode
from loaderd_protocol.errors import LoaderdError
from loaderd_protocol.messages import PROTOCOL_VERSION, AskStatus, Attach, Hello, Status, Welcome
from loaderd_protocol.rules import Channel, Sender
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.cli.status_tables import show

_WAIT_S = 5.0


def status(address: str | None, as_json: bool) -> int:
    """Prints the status; returns the exit code."""
    found = resolve(address)
    try:
        document = ask(found)
    except (OSError, LoaderdError, zmq.ZMQError) as error:
        sys.stderr.write(
            f"loaderd: no answer from {found.run_dir}: {error}. Is `loaderd serve` running there?\n"
        )
        return int(ExitCode.NO_DAEMON)
    if as_json:
        sys.stdout.write(document + "\n")
    else:
        show(document)
    return int(ExitCode.STOPPED)


def ask(address: Address) -> str:
    """The status document of the daemon at an address.

    Raises: OSError, LoaderdError, zmq.ZMQError where there is none or it does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as lease:
        lease.settimeout(_WAIT_S)
        lease.connect(os.fspath(address.attach_socket))
        lease.send(encode(Attach(PROTOCOL_VERSION, "loaderd status")))
        welcome = decode(lease.recv(1 << 16), Sender.DAEMON, Channel.LEASE)
        if not isinstance(welcome, Welcome):
            raise LoaderdError(f"the daemon answered {welcome}")
        return _converse(welcome)


def _converse(welcome: Welcome) -> str:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVTIMEO, int(_WAIT_S * 1000))
        dealer.setsockopt(zmq.IDENTITY, b"\1" + os.urandom(15))
        dealer.connect(welcome.endpoint)
        dealer.send(encode(Hello(welcome.token)))
        dealer.send(encode(AskStatus(1)))
        while True:
            message = decode(dealer.recv(), Sender.DAEMON, Channel.ZEROMQ)
            if isinstance(message, Status):
                return message.document
