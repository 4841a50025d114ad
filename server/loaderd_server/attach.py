"""The attach socket: trainers get their lease, descriptors and pongs here, and give batches back.

One SOCK_SEQPACKET connection is one lease. It ends with the connection or with the trainer's process
(its pidfd), whichever is first: a forked child may keep the connection open for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from loaderd_protocol import arena as arenas
from loaderd_protocol.address import Address
from loaderd_protocol.codec import decode, encode
from loaderd_protocol.errors import ErrorCode, ProtocolError
from loaderd_protocol.messages import (
    PROTOCOL_VERSION,
    ArenaAdded,
    Attach,
    Done,
    Leave,
    Ping,
    Pong,
    Rejected,
    Release,
    Welcome,
)
from loaderd_protocol.rules import Channel, Message, Sender
from loaderd_server.arenas import Arena
from loaderd_server.complaints import Complaints

_SO_PEERPIDFD = 77  # Linux 6.5; <asm-generic/socket.h>
_CREDENTIALS = struct.Struct("3i")
#: The longest packet is a Leave that keeps thousands of views.
_PACKET_BYTES = 1 << 18
_MOST_CONNECTIONS = 1024
#: Descriptors a trainer costs (connection, pidfd, ZeroMQ's own, one to spare), and what all else needs.
#: They must never run out: libzmq aborts the process where it cannot accept.
_DESCRIPTORS_EACH, _DESCRIPTORS_ELSE = 4, 96
#: When there was no descriptor for a connection, how long until the next try.
_ACCEPT_AGAIN_S = 0.2
#: A connection must say Attach within this time.
_ATTACH_WITHIN_S = 5.0
#: Packets that may wait for a trainer that does not read its lease.
_MOST_UNSENT = 256
#: Packets read from one trainer before others get their turn.
_BURST = 64


class LeaseHandler(Protocol):
    """Who is told of leases."""

    def lease_said(self, lease: int, message: Release | Leave | Done) -> None:
        """A trainer gave a batch back, or leaves."""

    def lease_ended(self, lease: int) -> None:
        """A trainer is gone."""


@dataclass(slots=True, eq=False)
class Connection:
    """One trainer's connection."""

    number: int
    socket: socket.socket
    pid: int
    pidfd: int = -1
    token: bytes = b""
    unsent: deque[tuple[bytes, int]] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None


class AttachPoint:
    """Listens on attach.sock and keeps every lease."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        streams: tuple[str, ...],
        arenas_now: Callable[[], list[Arena]],
        handler: LeaseHandler,
        complaints: Complaints,
    ) -> None:
        self._loop = loop
        self._address = address
        self._streams = streams
        self._arenas_now = arenas_now
        self._handler = handler
        self._complaints = complaints
        self._numbers = 0
        self._most = _MOST_CONNECTIONS
        self._pause: asyncio.TimerHandle | None = None
        self._packet = bytearray(_PACKET_BYTES)
        self._connections: dict[int, Connection] = {}
        self._by_token: dict[bytes, int] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def open(self) -> None:
        """Listens; trainers may come from now on."""
        self._most = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._listener.bind(os.fspath(self._address.attach_socket))
        os.chmod(self._address.attach_socket, 0o600)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Ends every lease and stops listening."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        for connection in list(self._connections.values()):
            self._end(connection)

    def lease_of(self, token: bytes) -> int | None:
        """The live lease that a token was given to."""
        return self._by_token.get(token)

    def pid_of(self, lease: int) -> int:
        """The pid of a lease's trainer, 0 where it is gone."""
        connection = self._connections.get(lease)
        return 0 if connection is None else connection.pid

    def end(self, lease: int, why: str) -> None:
        """Ends a lease for the trainer's fault."""
        connection = self._connections.get(lease)
        if connection is not None:
            self._complain(connection, "end", why)
            self._end(connection)

    def set_streams(self, streams: tuple[str, ...]) -> None:
        """Trainers that attach from now on are told of these."""
        self._streams = streams

    def add_arena(self, arena: Arena) -> None:
        """Tells every trainer of a new arena."""
        for connection in list(self._connections.values()):
            if connection.token:
                self._send_arena(connection, arena)

    # --- coming -----------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError as error:  # out of descriptors: asking again at once would only spin
            self._complaints.say("accept", f"cannot accept: {error}", self._loop.time())
            self._loop.remove_reader(self._listener.fileno())
            self._pause = self._loop.call_later(_ACCEPT_AGAIN_S, self._listen)
            return
        pid, uid, _gid = _CREDENTIALS.unpack(
            accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if uid not in (os.getuid(), 0) or len(self._connections) >= self._most:
            why = "of another user"
            if uid in (os.getuid(), 0):
                why = f"beyond {self._most}, which `ulimit -n` allows"
            self._complaints.say(
                "accept", f"refused a connection {why} (uid {uid}, pid {pid})", self._loop.time()
            )
            accepted.close()
            return
        accepted.setblocking(False)
        self._numbers += 1
        connection = Connection(self._numbers, accepted, pid)
        self._connections[connection.number] = connection
        self._watch(connection)
        self._loop.add_reader(accepted.fileno(), self._readable, connection)
        connection.timer = self._loop.call_later(_ATTACH_WITHIN_S, self._late, connection)

    def _watch(self, connection: Connection) -> None:
        try:
            connection.pidfd = connection.socket.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            try:
                connection.pidfd = os.pidfd_open(connection.pid)
            except OSError:  # in another pid namespace: the connection's end must do
                return
        self._loop.add_reader(connection.pidfd, self._end, connection)

    def _late(self, connection: Connection) -> None:
        if not connection.token:
            self._complain(connection, "late", f"said no Attach within {_ATTACH_WITHIN_S:g} s")
            self._end(connection)

    # --- talking ----------------------------------------------------------------------------

    def _readable(self, connection: Connection) -> None:
        for _packet in range(_BURST):
            if self._connections.get(connection.number) is not connection:
                return
            try:
                # Without room for ancillary data the kernel closes descriptors sent to us.
                size = connection.socket.recv_into(self._packet)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                size = 0
            if size == 0:
                self._end(connection)
                return
            packet = bytes(memoryview(self._packet)[:size])
            try:
                self._on_message(connection, decode(packet, Sender.TRAINER, Channel.LEASE))
            except ProtocolError as error:
                self._refuse(connection, ErrorCode.PROTOCOL, str(error))

    def _on_message(self, connection: Connection, message: Message) -> None:
        match message:
            case Attach():
                self._attach(connection, message)
            case Release() | Leave() | Done() if connection.token:
                self._handler.lease_said(connection.number, message)
            case Ping() if connection.token:
                self._send(connection, encode(Pong(message.number)))
            case _:
                raise ProtocolError(f"{type(message).__name__} before Attach")

    def _attach(self, connection: Connection, message: Attach) -> None:
        if connection.token:
            raise ProtocolError("Attach came twice")
        if message.version != PROTOCOL_VERSION:
            text = (
                f"the trainer speaks protocol version {message.version}, this daemon "
                f"{PROTOCOL_VERSION}: install the same loaderd on both sides"
            )
            self._refuse(connection, ErrorCode.VERSION, text)
            return
        connection.token = secrets.token_bytes(16)
        self._by_token[connection.token] = connection.number
        welcome = Welcome(
            PROTOCOL_VERSION, connection.number, connection.token,
            self._address.announce_endpoint, os.getpid(), self._streams,
        )  # fmt: skip
        self._send(connection, encode(welcome))
        for arena in self._arenas_now():
            self._send_arena(connection, arena)

    def _refuse(self, connection: Connection, code: ErrorCode, text: str) -> None:
        self._complain(connection, "refuse", text)
        if not connection.token:
            with contextlib.suppress(OSError):
                connection.socket.send(encode(Rejected(int(code), text)), socket.MSG_DONTWAIT)
        self._end(connection)

    def _send_arena(self, connection: Connection, arena: Arena) -> None:
        descriptor = arenas.reopen_read_only(arena.descriptor)
        self._send(connection, encode(ArenaAdded(arena.number, arena.size_bytes)), descriptor)

    def _send(self, connection: Connection, packet: bytes, descriptor: int = -1) -> None:
        """Sends a packet, now or when there is room; closes the descriptor when it is sent."""
        connection.unsent.append((packet, descriptor))
        if len(connection.unsent) == 1:
            self._write(connection)
        elif len(connection.unsent) > _MOST_UNSENT:
            self._complain(connection, "full", "does not read its lease")
            self._end(connection)

    def _write(self, connection: Connection) -> None:
        while connection.unsent:
            packet, descriptor = connection.unsent[0]
            try:
                if descriptor < 0:
                    connection.socket.send(packet)
                else:
                    socket.send_fds(connection.socket, [packet], [descriptor])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(connection.socket.fileno(), self._write, connection)
                return
            except OSError:
                self._end(connection)
                return
            connection.unsent.popleft()
            if descriptor >= 0:
                os.close(descriptor)
        self._loop.remove_writer(connection.socket.fileno())

    # --- going ------------------------------------------------------------------------------

    def _end(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        if connection.timer is not None:
            connection.timer.cancel()
        self._loop.remove_reader(connection.socket.fileno())
        self._loop.remove_writer(connection.socket.fileno())
        if connection.pidfd >= 0:
            self._loop.remove_reader(connection.pidfd)
            os.close(connection.pidfd)
        for _packet, descriptor in connection.unsent:
            if descriptor >= 0:
                os.close(descriptor)
        connection.socket.close()
        if connection.token:
            del self._by_token[connection.token]
            self._handler.lease_ended(connection.number)

    def _complain(self, connection: Connection, kind: str, text: str) -> None:
        self._complaints.say(
            kind, f"trainer {connection.number} (pid {connection.pid}): {text}", self._loop.time()
        )


def most_connections(descriptors: int) -> int:
    """How many trainers a process that may have so many descriptors can serve."""
    return max(1, min(_MOST_CONNECTIONS, (descriptors - _DESCRIPTORS_ELSE) // _DESCRIPTORS_EACH))
