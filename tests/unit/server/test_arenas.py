"""Arenas are made within the budget, and what is dropped is there again for the next."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from loaderd_protocol import arena
from loaderd_server.arenas import Arena, ArenaStore
from loaderd_server.core.actions import MakeArena
from loaderd_server.core.events import ArenaReady, ArenaRefused, Event
from loaderd_server.memory import Budget, Machine

SLOT = 4 * arena.PAGE_BYTES
COUNT = 3
SIZE = SLOT * COUNT


class Shop:
    """A store whose budget holds one arena."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.arenas: list[Arena] = []
        self.budget = Budget(SIZE, 0, Machine())
        self.store = ArenaStore(self.budget, self.events.put_nowait, self.arenas.append)

    async def make(self, number: int) -> Event:
        self.store.make(MakeArena(number, "train", SLOT, COUNT))
        return await asyncio.wait_for(self.events.get(), 10)


def test_a_dropped_arena_makes_room_for_one_that_is_asked_for_in_the_same_breath() -> None:
    async def run() -> None:
        shop = Shop()
        assert await shop.make(1) == ArenaReady(1)
        refused = await shop.make(2)
        assert isinstance(refused, ArenaRefused)
        shop.store.drop(1)
        assert shop.store.total_bytes() == 0
        assert await shop.make(3) == ArenaReady(3)
        assert [made.number for made in shop.store.all()] == [3]
        assert shop.budget.taken_bytes == SIZE
        shop.store.close()

    asyncio.run(run())


def test_a_dropped_arena_takes_no_memory_though_a_trainer_has_it_open() -> None:
    async def run() -> None:
        shop = Shop()
        await shop.make(1)
        (made,) = shop.arenas
        trainers = os.dup(made.descriptor)
        try:
            assert os.fstat(trainers).st_blocks > 0
            shop.store.drop(1)
            await shop.make(2)
            assert os.fstat(trainers).st_blocks == 0
        finally:
            os.close(trainers)
            shop.store.close()

    asyncio.run(run())


def test_an_arena_that_cannot_be_punched_is_told_of_and_let_go(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        shop = Shop()
        await shop.make(1)
        folder = os.open(tmp_path, os.O_RDONLY)
        os.dup2(folder, shop.arenas[0].descriptor)
        os.close(folder)
        shop.store.drop(1)
        assert await shop.make(2) == ArenaReady(2)
        shop.store.close()

    asyncio.run(run())
    (record,) = caplog.records
    assert "arena 1 keeps its 48 KiB until no trainer has it mapped" in record.getMessage()
