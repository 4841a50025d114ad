"""Pages that were written are found, in each way the kernel offers, and dropped."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from loaderd import pages
from loaderd_protocol import arena

PAGE = arena.PAGE_BYTES
SIZE = 64 * PAGE


@dataclass
class Mapped:
    private: mmap.mmap
    shared: mmap.mmap
    address: int

    def written(self) -> list[tuple[int, int]]:
        found = pages.written(self.address, self.address + SIZE)
        return [((s - self.address) // PAGE, (e - self.address) // PAGE) for s, e in found]


@pytest.fixture
def mapped() -> Iterator[Mapped]:
    descriptor = arena.create("pages", SIZE)
    shared = arena.map_shared(descriptor, SIZE, writable=True)
    arena.populate(shared)
    reader = arena.reopen_read_only(descriptor)
    private = arena.map_private(reader, SIZE)
    address = int(np.frombuffer(private, np.uint8).__array_interface__["data"][0])
    yield Mapped(private, shared, address)
    private.close()
    shared.close()
    os.close(reader)
    os.close(descriptor)


@pytest.fixture(params=["scan", "pagemap"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pagemap":

        def no_ioctl(*_arguments: object) -> None:
            raise OSError(25, "Inappropriate ioctl for device")

        monkeypatch.setattr(pages, "_scan", no_ioctl)
    name: str = request.param
    return name


def test_reading_is_not_writing(mapped: Mapped, way: str) -> None:
    assert sum(mapped.private[:]) == 0
    assert mapped.written() == []


def test_written_pages_are_found_as_ranges(mapped: Mapped, way: str) -> None:
    for page in (0, 3, 4, 63):
        mapped.private[page * PAGE] = 1
    assert mapped.written() == [(0, 1), (3, 5), (63, 64)]


def test_more_ranges_than_one_call_holds_are_all_found(
    mapped: Mapped, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_REGIONS", 4)
    for page in range(0, 64, 2):
        mapped.private[page * PAGE] = 1
    assert mapped.written() == [(page, page + 1) for page in range(0, 64, 2)]


def test_pages_that_were_written_and_reclaimed_are_found(mapped: Mapped, way: str) -> None:
    mapped.private[5 * PAGE] = 1
    libc = ctypes.CDLL(None)
    start = ctypes.c_void_p(mapped.address + 5 * PAGE)
    libc.madvise(start, ctypes.c_size_t(PAGE), 21)  # MADV_PAGEOUT
    assert mapped.written() == [(5, 6)]


def test_dropped_pages_show_the_arena_again(mapped: Mapped, way: str) -> None:
    mapped.private[PAGE] = 7
    mapped.shared[PAGE] = 9
    assert mapped.private[PAGE] == 7
    ranges = pages.written(mapped.address, mapped.address + SIZE)
    assert pages.drop(mapped.private, mapped.address, ranges)
    assert mapped.private[PAGE] == 9


def test_locked_pages_cannot_be_dropped_and_that_is_told(mapped: Mapped) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    mapped.private[PAGE] = 7
    place, size = ctypes.c_void_p(mapped.address + PAGE), ctypes.c_size_t(PAGE)
    if libc.mlock(place, size) != 0:
        pytest.skip("this user may lock no memory")
    ranges = pages.written(mapped.address, mapped.address + SIZE)
    assert not pages.drop(mapped.private, mapped.address, ranges)
    libc.munlock(place, size)


def test_without_pagemap_everything_counts_as_written(
    mapped: Mapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_pagemap", lambda _pid: None)
    assert mapped.written() == [(0, 64)]
