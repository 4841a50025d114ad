"""The two ends of a worker's line: whole frames in order, descriptors with theirs, nobody waits."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from typing import Any

from loaderd_server.workers.frames import Fields, Kind, pack
from loaderd_server.workers.line import BlockingLine, LoopLine


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


class Ends:
    """A line with the loop's end here and the blocking end in another thread's hands."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.frames: asyncio.Queue[tuple[Kind, Fields]] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.loop = LoopLine(asyncio.get_running_loop(), ours, self._take, self.ended.set)
        self.other = BlockingLine(theirs)

    def _take(self, kind: Kind, fields: Fields) -> None:
        self.frames.put_nowait((kind, fields))

    def close(self) -> None:
        self.loop.close()
        self.other.end.close()


def memfd(content: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, content)
    return descriptor


def content_of(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 100, 0)
    finally:
        os.close(descriptor)


def test_what_does_not_fit_is_sent_later_in_order_with_its_descriptors() -> None:
    async def test() -> None:
        ends = Ends()
        large = "x" * 3_000_000
        descriptors = [memfd(b"one"), memfd(b"two"), memfd(b"three")]
        ends.loop.send(pack(Kind.TASK, 0, large))  # fills the socket: the rest is queued
        ends.loop.send(pack(Kind.ARENA, 1, large), descriptors[:1])
        ends.loop.send(pack(Kind.ARENA, 2), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)
        got = [await asyncio.to_thread(ends.other.receive) for _ in range(3)]
        assert [frame[1][0] for frame in got if frame is not None] == [0, 1, 2]
        contents = [content_of(descriptor) for descriptor in ends.other.descriptors]
        assert contents == [b"one", b"two", b"three"]
        ends.close()

    run(test())


def test_a_line_closed_with_frames_unsent_keeps_no_descriptor() -> None:
    async def test() -> None:
        ends = Ends()
        before = set(os.listdir("/proc/self/fd"))
        descriptor = memfd(b"never read")
        for number in range(5):
            ends.loop.send(pack(Kind.ARENA, number, "x" * 1_000_000), [descriptor])
        os.close(descriptor)
        ends.close()
        assert set(os.listdir("/proc/self/fd")) <= before
        ends.loop.send(pack(Kind.STOP))  # a closed line takes no more, and says nothing

    run(test())


def test_frames_and_descriptors_come_whole_to_the_loop() -> None:
    async def test() -> None:
        ends = Ends()
        descriptor = memfd(b"order")
        frame = pack(Kind.ORDER, 1, "x" * 2_000_000)

        def send() -> None:
            ends.other.send(frame, [descriptor])
            ends.other.send(pack(Kind.RESULT, 2))

        sending = asyncio.create_task(asyncio.to_thread(send))
        kinds = [(await ends.frames.get())[0] for _ in range(2)]
        assert kinds == [Kind.ORDER, Kind.RESULT]
        await sending
        assert content_of(ends.loop.descriptors.popleft()) == b"order"
        os.close(descriptor)
        ends.close()

    run(test())


def test_the_end_of_one_side_is_told_to_the_other() -> None:
    async def test() -> None:
        ends = Ends()
        ends.other.send(pack(Kind.RESULT, 1))
        ends.other.end.close()
        await ends.ended.wait()
        assert (await ends.frames.get())[1] == [1]
        ends.loop.send(pack(Kind.TASK, 1))  # there is nobody to get it: no error
        ends.close()

        ends = Ends()
        ends.loop.close()
        assert ends.other.receive() is None
        assert not ends.other.send(pack(Kind.RESULT, 1))
        ends.close()

    run(test())


def test_draining_takes_in_all_that_came() -> None:
    async def test() -> None:
        ends = Ends()
        for number in range(100):
            ends.other.send(pack(Kind.RESULT, number))
        ends.loop.drain()
        assert ends.frames.qsize() == 100
        ends.close()

    run(test())
