"""One trainer's line to the daemon: lease, ZeroMQ conversation, arenas, and waiting on all of them.

Any thread may call; every use of a socket is under one lock, but for the releases of finalizers,
which take none. A thread that waits polls the descriptors outside the lock.
"""

from __future__ import annotations

import array
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import zmq

from loaderd.views import LeaseSocket
from loaderd_protocol.address import Address
from loaderd_protocol.codec import decode, encode
from loaderd_protocol.errors import (
    ERROR_CLASSES,
    DaemonLost,
    DaemonNotRunning,
    DaemonTimeout,
    ErrorCode,
    LoaderClosed,
    ProtocolError,
)
from loaderd_protocol.messages import (
    PROTOCOL_VERSION,
    ArenaAdded,
    Attach,
    Hello,
    Ping,
    Pong,
    Ready,
    Rejected,
    Status,
    Welcome,
)
from loaderd_protocol.rules import Channel, Message, Sender

log = logging.getLogger("loaderd")
M = TypeVar("M")

#: A thread looks at its inbox at least so often, as another thread may have filled it.
_SLICE_S = 0.2
_PACKET_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Patience:
    """When waiting for the daemon becomes worth a question, a warning."""

    ping_after_s: float = 5.0
    warn_after_s: float = 30.0


class Connection:
    """An attached lease and its conversation.

    Raises (constructor): DaemonNotRunning, VersionMismatch, DaemonTimeout, DaemonLost.
    """

    def __init__(
        self, address: Address, timeout_s: float | None, patience: Patience = Patience()
    ) -> None:
        self._timeout_s = timeout_s
        self._patience = patience
        self._lock = threading.Lock()
        self._inbox: dict[int, deque[Message]] = {}
        self._arenas: dict[int, tuple[int, int]] = {}
        self._answers: deque[Message] = deque()
        self._pings = self._pongs = 0
        self._lost = self._closed = False
        self.daemon_pid = 0
        self._lease_socket = _dial(address)
        self.lease = LeaseSocket(self._lease_socket)
        self._lease_descriptor = self._lease_socket.fileno()
        self._pollers = threading.local()
        self._dealer: zmq.Socket[bytes] | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        try:
            self._lease_socket.send(encode(Attach(PROTOCOL_VERSION, "loaderd")))
        except OSError as error:
            raise DaemonLost(
                f"the daemon ended while this trainer attached ({error.strerror}). Start `loaderd "
                f"serve` again and connect anew."
            ) from None
        welcome = self._answer(Welcome, "the lease")
        self.daemon_pid = welcome.daemon_pid
        dealer: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, b"\1" + os.urandom(15))
        dealer.setsockopt(zmq.LINGER, 200)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.connect(welcome.endpoint)
        self._dealer = dealer
        self.send(Hello(welcome.token))
        self._answer(Ready, "the daemon's Ready")

    # --- talking ----------------------------------------------------------------------------

    def send(self, *messages: Message) -> None:
        """Sends over ZeroMQ.

        Raises: LoaderClosed, DaemonLost.
        """
        with self._lock:
            if self._dealer is None or self._closed:
                raise LoaderClosed("the loader is closed; connect again")
            for message in messages:
                self._dealer.send(encode(message))
            # Sending may swallow the wake-up of a message that came in (ZMQ_FD is edge-triggered).
            self._drain()

    def expect(self, sub: int) -> None:
        """Messages of ``sub`` are kept from now on."""
        with self._lock:
            self._inbox.setdefault(sub, deque())

    def inbox(self, sub: int) -> deque[Message]:
        """What came for ``sub`` and was not received yet; empty where the line is closed."""
        return self._inbox.get(sub) or deque()

    def take_in(self) -> None:
        """Takes in what has come, for whoever asks for it later."""
        with self._lock:
            self._drain()

    def receive(self, sub: int, what: str) -> Message:
        """The next message of ``sub``.

        ``what`` tells in errors what is waited for. Raises: DaemonLost, DaemonTimeout, ProtocolError.
        """
        inbox = self._inbox.get(sub)
        if inbox is None:
            raise LoaderClosed("the loader is closed; connect again")
        if not inbox:
            self._wait(lambda: bool(inbox), what)
        return inbox.popleft()

    def open_arena(self, arena: int) -> tuple[int, int]:
        """An arena's descriptor and size; waits for it, as an announcement may overtake it."""
        if arena not in self._arenas:
            self._wait(lambda: arena in self._arenas, f"the descriptor of arena {arena}")
        return self._arenas[arena]

    # --- ending -----------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the conversation; the lease ends with the last view."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._dealer is not None:
                self._dealer.close()
            for descriptor, _size in self._arenas.values():
                os.close(descriptor)
            self._arenas.clear()
            self._inbox.clear()
        self.lease.close()

    def abandon(self) -> None:
        """In a forked child: lets go of everything without a word to the daemon."""
        self._lock = threading.Lock()
        self._closed = True
        self.lease.forget()
        if self._dealer is not None:
            self._dealer.close()  # pyzmq does nothing here but mark it, in another process
        for descriptor, _size in self._arenas.values():
            os.close(descriptor)
        self._arenas.clear()
        self._inbox.clear()

    # --- waiting ----------------------------------------------------------------------------

    def _answer(self, kind: type[M], what: str) -> M:
        self._wait(lambda: bool(self._answers), what)
        message = self._answers.popleft()
        if isinstance(message, Rejected):
            raise ERROR_CLASSES[ErrorCode(message.code)](message.text)
        if not isinstance(message, kind):
            raise ProtocolError(f"the daemon sent {type(message).__name__}, not {what}")
        return message

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        timeout_s = self._timeout_s
        with self._lock:
            self._drain()
        if ready():
            return
        began = time.monotonic()
        asked = warned = False
        while True:
            if self._lost:
                raise self._loss(what)
            waited = time.monotonic() - began
            if timeout_s is not None and waited >= timeout_s:
                raise self._timeout(what, waited)
            if not asked and waited >= self._patience.ping_after_s:
                asked = True
                self._ping()
            if asked and not warned and waited >= self._patience.warn_after_s:
                warned = self._warn(what, waited)
            left = _SLICE_S if timeout_s is None else timeout_s - waited
            readable = self._poller().poll(max(1, int(1000 * min(_SLICE_S, left))))
            with self._lock:
                if any(descriptor == self._lease_descriptor for descriptor, _ in readable):
                    self._read_lease()
                self._drain()
            if ready():
                return

    def _poller(self) -> select.poll:
        """This thread's poller, as one may not be used by two threads at once."""
        poller: select.poll | None = getattr(self._pollers, "poller", None)
        if poller is None or self._pollers.dealer is not self._dealer:
            poller = select.poll()
            poller.register(self._lease_descriptor, select.POLLIN)
            if self._dealer is not None:
                poller.register(self._dealer.fileno(), select.POLLIN)
            self._pollers.poller, self._pollers.dealer = poller, self._dealer
        return poller

    def _drain(self) -> None:
        """Takes in every ZeroMQ message that is there; under the lock."""
        self.lease.flush()
        if self._dealer is None or self._closed:
            return
        while int(self._dealer.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frame = self._dealer.recv(zmq.NOBLOCK)
            message = decode(frame, Sender.DAEMON, Channel.ZEROMQ)
            if isinstance(message, Ready | Status):
                self._answers.append(message)
                continue
            inbox = self._inbox.get(message.sub)  # type: ignore[union-attr]
            if inbox is not None:
                inbox.append(message)

    def _read_lease(self) -> None:
        while not self._closed and not self._lost:
            try:
                frame, ancillary, _flags, _ = self._lease_socket.recvmsg(
                    _PACKET_BYTES,
                    socket.CMSG_SPACE(4),
                    socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
                )
            except BlockingIOError:
                return
            except OSError:
                frame, ancillary = b"", []
            if not frame:
                self._lost = True
                return
            self._on_lease(decode(frame, Sender.DAEMON, Channel.LEASE), ancillary)

    def _on_lease(self, message: Message, ancillary: list[tuple[int, int, bytes]]) -> None:
        match message:
            case ArenaAdded(number, size_bytes):
                descriptors = array.array("i")
                for _level, _kind, data in ancillary:
                    descriptors.frombytes(data[: len(data) - len(data) % 4])
                if len(descriptors) != 1:
                    raise ProtocolError(f"arena {number} came with {len(descriptors)} descriptors")
                self._arenas[number] = (descriptors[0], size_bytes)
            case Pong(number):
                self._pongs = number
            case _:
                self._answers.append(message)

    def _ping(self) -> None:
        self._pings += 1
        try:
            self._lease_socket.send(encode(Ping(self._pings)), socket.MSG_DONTWAIT)
        except OSError:
            return

    def _warn(self, what: str, waited: float) -> bool:
        if self._pongs >= self._pings:
            return False
        log.warning(
            "waiting for %s for %.0f s: the daemon (pid %d) is %s and does not answer",
            what, waited, self.daemon_pid, _state(self.daemon_pid),
        )  # fmt: skip
        return True

    def _loss(self, what: str) -> DaemonLost:
        return DaemonLost(
            f"the daemon (pid {self.daemon_pid}) ended while this trainer waited for {what}. "
            f"Batches in hand stay valid. Start `loaderd serve` again and connect anew."
        )

    def _timeout(self, what: str, waited: float) -> DaemonTimeout:
        return DaemonTimeout(
            f"{what} did not come within {waited:.1f} s (timeout_s: {self._timeout_s}): the "
            f"daemon (pid {self.daemon_pid}) is {_state(self.daemon_pid)}. Ask again, raise "
            f"timeout_s, or look at `loaderd status`."
        )


def _dial(address: Address) -> socket.socket:
    path = os.fspath(address.attach_socket)
    dialed = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        dialed.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        dialed.close()
        raise DaemonNotRunning(
            f"no daemon at {str(address.run_dir)!r} ({error.strerror}). Start one with `loaderd "
            f"serve --config cfg.yaml --run-dir {address.run_dir}`, or name another address with "
            f"loaderd.connect(..., address=) or $LOADERD_ADDRESS."
        ) from None
    except OSError as error:
        dialed.close()
        raise DaemonNotRunning(f"cannot attach at {path!r}: {error}") from error
    return dialed


_STATES = {
    "T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "Z": "dead", "X": "dead",
    "D": "waiting for a disk", "R": "running", "S": "running (idle)",
}  # fmt: skip


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "not to be seen from here"
    return _STATES.get(letter, f"in state {letter}")
