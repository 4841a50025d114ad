"""The attach socket where descriptors are scarce: it waits, does not spin, and bounds trainers."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from pathlib import Path

import pytest

from loaderd_protocol.address import Address
from loaderd_protocol.codec import decode, encode
from loaderd_protocol.messages import PROTOCOL_VERSION, Attach, Done, Leave, Release, Welcome
from loaderd_protocol.rules import Channel, Sender
from loaderd_server.attach import AttachPoint, most_connections
from loaderd_server.complaints import Complaints


class Handler:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def lease_said(self, lease: int, message: Release | Leave | Done) -> None:
        self.told.append(message)

    def lease_ended(self, lease: int) -> None:
        self.told.append(lease)


def point(directory: Path, handler: Handler) -> AttachPoint:
    loop = asyncio.get_running_loop()
    return AttachPoint(loop, Address(directory), ("train",), list, handler, Complaints())


def test_trainers_are_bounded_by_the_descriptors_there_are() -> None:
    assert most_connections(1 << 20) == 1024
    assert most_connections(1024) == 232
    assert most_connections(64) == 1


def test_without_descriptors_a_trainer_waits_until_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def test() -> None:
        handler = Handler()
        attach = point(tmp_path, handler)
        attach.open()
        trainer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        trainer.connect(os.fspath(Address(tmp_path).attach_socket))
        trainer.setblocking(False)
        trainer.send(encode(Attach(PROTOCOL_VERSION, "test")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            for _turn in range(10):
                await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert caplog.text.count("Too many open files") == 1
        packet = await asyncio.wait_for(
            asyncio.get_running_loop().sock_recv(trainer, 1 << 16), timeout=10
        )
        assert isinstance(decode(packet, Sender.DAEMON, Channel.LEASE), Welcome)
        trainer.close()
        while not handler.told:
            await asyncio.wait_for(asyncio.sleep(0), timeout=10)
        assert handler.told == [1]
        attach.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_the_bound_is_told_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def test() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (104, limits[1]))  # two trainers' worth
        try:
            attach = point(tmp_path, Handler())
            attach.open()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        trainers = []
        for _trainer in range(3):
            trainer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            trainer.connect(os.fspath(Address(tmp_path).attach_socket))
            trainer.settimeout(10)
            trainers.append(trainer)
        loop = asyncio.get_running_loop()
        for trainer in trainers:
            trainer.setblocking(False)
        assert await asyncio.wait_for(loop.sock_recv(trainers[2], 100), 10) == b""
        assert "beyond 2, which `ulimit -n` allows" in caplog.text
        for trainer in trainers:
            trainer.close()
        attach.close()

    asyncio.run(asyncio.wait_for(test(), 30))
