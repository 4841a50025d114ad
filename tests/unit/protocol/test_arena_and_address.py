"""Arenas cannot change size or be written by readers; addresses know the kernel's limit."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from loaderd_protocol import arena
from loaderd_protocol.address import Address, default_run_dir, resolve
from loaderd_protocol.errors import AddressError


@pytest.fixture
def descriptor() -> object:
    made = arena.create("test", 2 * arena.PAGE_BYTES)
    yield made
    os.close(made)


def test_a_punched_arena_takes_no_memory_though_it_is_mapped(descriptor: int) -> None:
    mapped = arena.map_shared(descriptor, 2 * arena.PAGE_BYTES, writable=True)
    mapped[0:3] = b"abc"
    arena.populate(mapped)
    assert os.fstat(descriptor).st_blocks * 512 == 2 * arena.PAGE_BYTES
    arena.punch(descriptor, 2 * arena.PAGE_BYTES)
    assert os.fstat(descriptor).st_blocks == 0
    assert os.fstat(descriptor).st_size == 2 * arena.PAGE_BYTES
    assert mapped[0:3] == bytes(3)


def test_an_arena_that_cannot_be_punched_says_why(descriptor: int) -> None:
    reader = arena.reopen_read_only(descriptor)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            arena.punch(reader, arena.PAGE_BYTES)
    finally:
        os.close(reader)


def test_what_a_writer_writes_a_reader_sees(descriptor: int) -> None:
    reader = arena.reopen_read_only(descriptor)
    written = arena.map_shared(descriptor, 2 * arena.PAGE_BYTES, writable=True)
    arena.populate(written)
    view = arena.map_private(reader, 2 * arena.PAGE_BYTES)
    os.close(reader)
    written[5000:5003] = b"abc"
    assert view[5000:5003] == b"abc"


def test_a_readers_write_is_its_own(descriptor: int) -> None:
    reader = arena.reopen_read_only(descriptor)
    view = arena.map_private(reader, 2 * arena.PAGE_BYTES)
    view[0:1] = b"x"
    assert arena.map_shared(reader, 2 * arena.PAGE_BYTES, writable=False)[0:1] == b"\0"
    with pytest.raises(PermissionError):
        arena.map_shared(reader, 2 * arena.PAGE_BYTES, writable=True)
    os.close(reader)


def test_nobody_can_change_the_size_and_only_the_owner_may_open(descriptor: int) -> None:
    for size in (0, 4 * arena.PAGE_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o400


def test_page_align_rounds_up() -> None:
    page = arena.PAGE_BYTES
    assert [arena.page_align(n) for n in (0, 1, page, page + 1)] == [0, page, page, 2 * page]


def test_a_path_that_no_socket_can_have_is_refused_with_the_limit() -> None:
    with pytest.raises(AddressError, match=r"107 bytes.*--run-dir"):
        Address(Path("/" + "d" * 100))
    assert Address(Path("/" + "d" * 92)).attach_socket.name == "attach.sock"


def test_given_beats_environment_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    monkeypatch.delenv("LOADERD_ADDRESS", raising=False)
    assert resolve(None).run_dir == Path("/run/user/1/loaderd")
    monkeypatch.setenv("LOADERD_ADDRESS", "/tmp/here")
    assert resolve(None).run_dir == Path("/tmp/here")
    assert resolve("/tmp/there").run_dir == Path("/tmp/there")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_run_dir().name == f"loaderd-{os.getuid()}"
