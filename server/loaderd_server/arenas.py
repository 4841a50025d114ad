"""Arenas as the daemon owns them: checked against memory, made and faulted in off the loop, kept."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from loaderd_protocol import arena
from loaderd_protocol.errors import OutOfMemory
from loaderd_server.core.actions import MakeArena
from loaderd_server.core.events import ArenaReady, ArenaRefused, Event
from loaderd_server.memory import Budget
from loaderd_server.units import show_size

log = logging.getLogger("loaderd.memory")


@dataclass(frozen=True, slots=True)
class Arena:
    """An arena that is there: its number, descriptor (read-write) and size."""

    number: int
    descriptor: int
    size_bytes: int


class ArenaStore:
    """Makes arenas when the core asks; the only owner of their descriptors."""

    def __init__(
        self,
        budget: Budget,
        on_event: Callable[[Event], None],
        on_arena: Callable[[Arena], None],
    ) -> None:
        self._budget = budget
        self._on_event = on_event
        self._on_arena = on_arena
        self._arenas: dict[int, Arena] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        #: Arenas whose memory is on its way back.
        self._drops: set[asyncio.Task[None]] = set()

    def make(self, action: MakeArena) -> None:
        """Begins to make an arena; ArenaReady or ArenaRefused tells how it went."""
        task = asyncio.get_running_loop().create_task(self._make(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drop(self, arena: int) -> None:
        """Begins to give an arena's memory back, even where a process still has it mapped."""
        task = asyncio.get_running_loop().create_task(self._drop(self._arenas.pop(arena)))
        self._drops.add(task)
        task.add_done_callback(self._drops.discard)

    def all(self) -> list[Arena]:
        """Every arena there is."""
        return list(self._arenas.values())

    def total_bytes(self) -> int:
        """What they take together."""
        return sum(made.size_bytes for made in self._arenas.values())

    def close(self) -> None:
        """Closes every descriptor; the memory is free when the last mapping goes."""
        for made in self._arenas.values():
            os.close(made.descriptor)
        self._arenas.clear()

    async def _make(self, action: MakeArena) -> None:
        size_bytes = arena.page_align(action.slot_bytes * action.count)
        what = (
            f"stream {action.stream}: {action.count} slots of {show_size(action.slot_bytes)}"
            if action.count > 1
            else f"stream {action.stream}: a slot of {show_size(action.slot_bytes)}"
        )
        stream = f"streams.{action.stream}"
        settings = f"`{stream}.slots`, `{stream}.slot_bytes` or `{stream}.batch_size`"
        if self._drops:  # what they give back may be what is missing
            await asyncio.wait(tuple(self._drops))
        try:
            self._budget.take(size_bytes, what, settings)
        except OutOfMemory as error:
            self._on_event(ArenaRefused(action.arena, str(error)))
            return
        try:
            loop = asyncio.get_running_loop()
            descriptor = await loop.run_in_executor(
                None, _create, f"{action.stream}-{action.arena}", size_bytes
            )
        except OSError as error:
            self._budget.give_back(size_bytes)
            text = f"{what} needs {show_size(size_bytes)}: {error.strerror}. Lower {settings}."
            self._on_event(ArenaRefused(action.arena, text))
            return
        made = Arena(action.arena, descriptor, size_bytes)
        self._arenas[action.arena] = made
        self._on_arena(made)
        self._on_event(ArenaReady(action.arena))

    async def _drop(self, dropped: Arena) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _give_back, dropped)
        self._budget.give_back(dropped.size_bytes)


def _give_back(dropped: Arena) -> None:
    try:
        arena.punch(dropped.descriptor, dropped.size_bytes)
    except OSError as error:
        log.warning(
            "arena %d keeps its %s until no trainer has it mapped: %s",
            dropped.number, show_size(dropped.size_bytes), error.strerror,
        )  # fmt: skip
    finally:
        os.close(dropped.descriptor)


def _create(name: str, size_bytes: int) -> int:
    descriptor = arena.create(name, size_bytes)
    try:
        with arena.map_shared(descriptor, size_bytes, writable=True) as mapping:
            arena.populate(mapping)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
