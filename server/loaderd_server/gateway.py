"""The ZeroMQ side: one ROUTER, one identity a lease, announcements out and control messages in.

The socket is watched by its descriptor, which signals edges: after every wake *and every send* messages
are taken until none is left, or a wake-up would be lost (ZMQ_FD in zmq_getsockopt(3)).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import zmq

from loaderd_protocol.address import Address
from loaderd_protocol.codec import MAX_FRAME_BYTES, decode, encode
from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.messages import AskStatus, Hello, Ready, Start, Status, Subscribe, Unsubscribe
from loaderd_protocol.rules import Channel, Message, Sender
from loaderd_server.complaints import Complaints

#: Above all credits a trainer can have, with what else is said.
_HIGH_WATER = 4096
_MOST_UNSENT = 1024
_RETRY_S = 0.01
_BURST = 256


class TrainerHandler(Protocol):
    """Who answers trainers."""

    def lease_of(self, token: bytes) -> int | None:
        """The live lease of a token."""

    def lease_began(self, lease: int) -> None:
        """A trainer said Hello."""

    def trainer_said(self, lease: int, message: Subscribe | Start | Unsubscribe) -> None:
        """A trainer said something for the core."""

    def status_document(self) -> str:
        """What the daemon is doing, in JSON."""

    def trainer_is_deaf(self, lease: int) -> None:
        """A trainer takes no more messages."""


@dataclass(slots=True, eq=False)
class Peer:
    """One identity that said Hello."""

    lease: int
    identity: bytes
    unsent: deque[bytes] = field(default_factory=deque)


class Gateway:
    """Owns the ROUTER socket."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        handler: TrainerHandler,
        complaints: Complaints,
    ) -> None:
        self._loop = loop
        self._address = address
        self._handler = handler
        self._complaints = complaints
        self._by_identity: dict[bytes, Peer] = {}
        self._by_lease: dict[int, Peer] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._descriptor = -1
        self._draining = False
        self._retry: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Binds the endpoint and watches it."""
        router = self._router
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, _HIGH_WATER)
        router.setsockopt(zmq.RCVHWM, _HIGH_WATER)
        router.setsockopt(zmq.LINGER, 100)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        router.bind(self._address.announce_endpoint)
        self._descriptor = router.fileno()
        self._loop.add_reader(self._descriptor, self._drain)
        self._drain()

    def close(self) -> None:
        """Unbinds; what was sent may still be read."""
        if self._retry is not None:
            self._retry.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
        self._router.close()
        self._context.term()

    def send(self, lease: int, message: Message) -> None:
        """Sends to a trainer; the order of its messages is kept."""
        peer = self._by_lease.get(lease)
        if peer is None:
            return
        peer.unsent.append(encode(message))
        self._flush(peer)
        self._drain()

    def forget(self, lease: int) -> None:
        """The lease has ended: its identity means nothing any more."""
        peer = self._by_lease.pop(lease, None)
        if peer is not None:
            del self._by_identity[peer.identity]

    # --- out --------------------------------------------------------------------------------

    def _flush(self, peer: Peer) -> None:
        while peer.unsent:
            try:
                self._router.send(peer.identity, zmq.NOBLOCK | zmq.SNDMORE)
                self._router.send(peer.unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                self._wait_for(peer)
                return
            except zmq.ZMQError:  # no route: its connection is gone, its lease's end follows
                peer.unsent.clear()
                return
            peer.unsent.popleft()

    def _wait_for(self, peer: Peer) -> None:
        if len(peer.unsent) > _MOST_UNSENT:
            peer.unsent.clear()
            self._handler.trainer_is_deaf(peer.lease)
            return
        if self._retry is None:
            self._retry = self._loop.call_later(_RETRY_S, self._flush_all)

    def _flush_all(self) -> None:
        self._retry = None
        for peer in list(self._by_lease.values()):
            if peer.unsent:
                self._flush(peer)
        self._drain()

    # --- in ---------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._draining:  # a message's handler sent something: the outer loop goes on
            return
        self._draining = True
        try:
            for _message in range(_BURST):
                if not int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                    return
                self._received(self._router.recv_multipart(zmq.NOBLOCK))
            self._loop.call_soon(self._drain)
        finally:
            self._draining = False

    def _received(self, frames: list[bytes]) -> None:
        identity = frames[0]
        try:
            if len(frames) != 2:
                raise ProtocolError(f"{len(frames) - 1} frames instead of one")
            message = decode(frames[1], Sender.TRAINER, Channel.ZEROMQ)
            self._on_message(identity, message)
        except ProtocolError as error:
            peer = self._by_identity.get(identity)
            who = f"trainer {peer.lease}" if peer is not None else "a stranger on ZeroMQ"
            self._complaints.say("zeromq", f"{who}: {error}", self._loop.time())

    def _on_message(self, identity: bytes, message: Message) -> None:
        peer = self._by_identity.get(identity)
        if isinstance(message, Hello):
            self._hello(identity, message, peer)
            return
        if peer is None:
            raise ProtocolError(f"{type(message).__name__} before Hello")
        if isinstance(message, AskStatus):
            self.send(peer.lease, Status(message.request, self._handler.status_document()))
            return
        assert isinstance(message, Subscribe | Start | Unsubscribe)
        self._handler.trainer_said(peer.lease, message)

    def _hello(self, identity: bytes, message: Hello, peer: Peer | None) -> None:
        lease = self._handler.lease_of(message.token)
        if lease is None:
            raise ProtocolError("Hello with a token that is no live lease's")
        if peer is not None or lease in self._by_lease:
            raise ProtocolError("Hello twice")
        peer = Peer(lease, identity)
        self._by_identity[identity] = self._by_lease[lease] = peer
        self._handler.lease_began(lease)
        self.send(lease, Ready(lease))
