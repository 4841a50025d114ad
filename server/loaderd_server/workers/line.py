"""One end of a socket pair: blocking in zygotes and workers, non-blocking in the daemon's loop."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from loaderd_server.workers.frames import Fields, FrameBuffer, Kind

_CHUNK = 1 << 18
_MOST_DESCRIPTORS = 4


def _receive(end: socket.socket, descriptors: deque[int]) -> bytes:
    data, ancillary, _flags, _ = end.recvmsg(
        _CHUNK, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received = array.array("i")
            received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
            descriptors.extend(received)
    return data


class BlockingLine:
    """The end in a zygote or worker. ``descriptors`` holds those received and not yet taken."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.descriptors: deque[int] = deque()
        self._buffer = FrameBuffer()
        self._frames: deque[tuple[Kind, Fields]] = deque()

    def receive(self) -> tuple[Kind, Fields] | None:
        """The next frame; None when the other end is gone."""
        while not self._frames:
            try:
                data = _receive(self.end, self.descriptors)
            except ConnectionError:
                return None
            if not data:
                return None
            self._buffer.feed(data)
            self._frames.extend(self._buffer.frames())
        return self._frames.popleft()

    def pending(self) -> bool:
        """Whether a frame is here already."""
        return bool(self._frames)

    def send(self, frame: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Sends a whole frame; False when the other end is gone."""
        try:
            sent = socket.send_fds(self.end, [frame], list(descriptors)) if descriptors else 0
            self.end.sendall(memoryview(frame)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True


class LoopLine:
    """The end in the daemon: reads when there is something, queues what cannot be written yet."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        on_frame: Callable[[Kind, Fields], None],
        on_end: Callable[[], None],
    ) -> None:
        end.setblocking(False)
        self._loop = loop
        self._end = end
        self._descriptor = end.fileno()
        self._on_frame = on_frame
        self._on_end = on_end
        self._buffer = FrameBuffer()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self.descriptors: deque[int] = deque()
        self.closed = False
        loop.add_reader(self._descriptor, self._readable)

    def send(self, frame: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a frame, now or as soon as there is room. ``descriptors`` are borrowed."""
        if self.closed:
            return
        own = [os.dup(descriptor) for descriptor in descriptors]
        self._unsent.append((memoryview(frame), own))
        if len(self._unsent) == 1:
            self._write()

    def drain(self) -> None:
        """Takes in all that has been received by now."""
        while not self.closed and self._read_once():
            pass

    def close(self) -> None:
        """Ends the line."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._descriptor)
        self._loop.remove_writer(self._descriptor)
        for descriptor in self.descriptors:
            os.close(descriptor)
        for _frame, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self._unsent.clear()
        self._end.close()

    def _readable(self) -> None:
        self._read_once()

    def _read_once(self) -> bool:
        """Reads once; False where there is nothing more for now."""
        try:
            data = _receive(self._end, self.descriptors)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._descriptor)
            self._on_end()
            return False
        self._buffer.feed(data)
        for kind, fields in self._buffer.frames():
            self._on_frame(kind, fields)
        return True

    def _write(self) -> None:
        while self._unsent:
            frame, descriptors = self._unsent[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._end, [frame], descriptors)
                else:
                    sent = self._end.send(frame)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._descriptor, self._write)
                return
            except OSError:  # the other end is gone: its end is told by the reader
                sent = len(frame)
            for descriptor in descriptors:
                os.close(descriptor)
            if sent < len(frame):
                self._unsent[0] = (frame[sent:], [])
                continue
            self._unsent.popleft()
        self._loop.remove_writer(self._descriptor)
