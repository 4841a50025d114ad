"""Views on slots: private mappings, one base array for each batch, given back once when it dies.

``give_back`` runs as a finalizer, in whichever thread the last tensor died, inside garbage collection
too: it takes no lock, touches no ZeroMQ socket and blocks on nothing.
"""

from __future__ import annotations

import logging
import mmap
import socket
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loaderd import pages
from loaderd_protocol import arena
from loaderd_protocol.codec import encode
from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    BatchEmpty,
    BatchFailed,
    Done,
    Leave,
    Release,
)

Bytes = npt.NDArray[np.uint8]
#: What comes for each batch of an epoch; each takes a credit until it is released.
Arrival = Announce | BatchFailed | BatchEmpty
log = logging.getLogger("loaderd")

#: Batches in a row whose pages were mostly written, after which copies are cheaper than views.
_WRITES_BEFORE_COPIES = 4


def release_of(arrival: Arrival) -> bytes:
    """The frame that gives an announcement, or what came in place of one, back."""
    if isinstance(arrival, Announce):
        return encode(Release(arrival.sub, arrival.slot, arrival.generation))
    return encode(Release(arrival.sub, NO_SLOT, arrival.batch))


class Out(NamedTuple):
    """A view that is out."""

    finalizer: weakref.finalize[..., Bytes]
    announce: Announce


class LeaseSocket:
    """The trainer's end of the lease: releases go out on it, and its end ends the lease.

    It stays open until it is closed *and* the last view has been given back.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        #: Views that are out, by a number of their own.
        self.out: dict[int, Out] = {}
        self.closed = False
        #: What was given out of queues, by sub: said once more when the lease ends.
        self.done: dict[int, Done] = {}
        self._unsent: deque[bytes] = deque()

    def release(self, frame: bytes) -> None:
        """Sends a Release now, or keeps it for ``flush`` where the socket is full."""
        self._unsent.append(frame)
        self.flush()

    def flush(self) -> None:
        """Sends what could not be sent. Safe in any thread: each frame is popped once."""
        while self._unsent:
            try:
                frame = self._unsent.popleft()
            except IndexError:
                return
            try:
                self.socket.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._unsent.appendleft(frame)
                return
            except OSError:  # the daemon is gone: nobody waits for it
                return

    def close(self) -> None:
        """Ends the lease, or leaves that to the last view; all but what views show comes back."""
        kept = [out.announce for out in list(self.out.values())]
        leave = Leave(
            tuple(Release(a.sub, a.slot, a.generation) for a in kept), tuple(self.done.values())
        )
        self.release(encode(leave))
        self.closed = True
        self.close_if_unused()

    def close_if_unused(self) -> None:
        """Ends the lease where it is closed and no view is out."""
        if self.closed and not self.out:
            self.socket.close()

    def make_own(self) -> None:
        """In a forked child: makes every page of every live view this process's own."""
        for out in list(self.out.values()):
            alive = out.finalizer.peek()
            if alive is not None:
                touched = alive[0][:: mmap.PAGESIZE]  # slots begin with a page
                touched[:] = touched.copy()

    def forget(self) -> None:
        """In a forked child: gives up the descriptor and every finalizer, and sends nothing."""
        for out in list(self.out.values()):
            out.finalizer.detach()
        self.out.clear()
        self._unsent.clear()
        self.socket.close()


@dataclass(slots=True)
class Window:
    """One arena as this subscription sees it: privately for views, as it is for copies.

    A private page that was written and could not be dropped would be stale in a copy.
    """

    mapping: mmap.mmap
    address: int
    shared: mmap.mmap


class Views:
    """The views of one subscription, in mappings of its own (two subscriptions may hold one slot)."""

    def __init__(self, lease: LeaseSocket, open_arena: Callable[[int], tuple[int, int]]) -> None:
        self._lease = lease
        self._open_arena = open_arena
        self._windows: dict[int, Window] = {}
        self._numbers = 0
        self._mostly_written = 0
        self._said = False
        #: Views of this subscription that are alive.
        self.alive: set[int] = set()
        #: Copies instead of views from now on: pages cannot be dropped, or are all written anyway.
        self.copies_only = False

    def view(self, announce: Announce) -> Bytes | None:
        """The slot as a writable array; when the last thing made from it dies, it is released.

        None where this process has pages of its own there that cannot be dropped (something locked
        its memory, which breaks copy-on-write): a view would show an earlier batch.
        """
        window, start = self._locate(announce)
        if not self._is_clean(window, start, announce.size_bytes):
            return None
        base = np.frombuffer(window.mapping, np.uint8, announce.size_bytes, start)
        frame = release_of(announce)
        self._numbers += 1
        number = self._numbers
        key = id(self) ^ number
        finalizer = weakref.finalize(
            base, self._give_back, number, key, window, start, announce.size_bytes, frame
        )
        finalizer.atexit = False
        self.alive.add(number)
        self._lease.out[key] = Out(finalizer, announce)
        return base

    def copy(self, announce: Announce) -> Bytes:
        """A copy of the slot on the heap; the slot is released."""
        if self.copies_only and not self._said:
            self._said = True
            log.info("batches are written in place or locked: from now on they come as copies")
        window, start = self._locate(announce)
        copied = np.frombuffer(window.shared, np.uint8, announce.size_bytes, start).copy()
        self._lease.release(release_of(announce))
        return copied

    def _locate(self, announce: Announce) -> tuple[Window, int]:
        window = self._windows.get(announce.arena)
        if window is None:
            descriptor, size = self._open_arena(announce.arena)
            mapping = arena.map_private(descriptor, size)
            whole = np.frombuffer(mapping, np.uint8)
            address = int(whole.__array_interface__["data"][0])
            shared = arena.map_shared(descriptor, size, writable=False)
            window = Window(mapping, address, shared)
            self._windows[announce.arena] = window
        end = announce.offset + announce.size_bytes
        if announce.offset < 0 or announce.size_bytes <= 0 or end > len(window.mapping):
            raise ProtocolError(
                f"batch {announce.batch} is announced at {announce.offset} to {end} of an arena "
                f"of {len(window.mapping)} bytes"
            )
        return window, announce.offset

    def _is_clean(self, window: Window, start: int, size: int) -> bool:
        first = window.address + start
        ranges = pages.written(first, first + arena.page_align(size))
        if ranges and not pages.drop(window.mapping, window.address, ranges):
            self.copies_only = True
        return not self.copies_only

    def _give_back(
        self, number: int, key: int, window: Window, start: int, size: int, frame: bytes
    ) -> None:
        first = window.address + start
        last = first + arena.page_align(size)
        ranges = pages.written(first, last)
        if ranges:
            self._note_writes(sum(end - begin for begin, end in ranges), last - first)
            if not pages.drop(window.mapping, window.address, ranges):
                self.copies_only = True
        self.alive.discard(number)
        self._lease.out.pop(key, None)
        self._lease.release(frame)
        self._lease.close_if_unused()

    def _note_writes(self, written_bytes: int, whole_bytes: int) -> None:
        mostly = written_bytes * 2 > whole_bytes
        self._mostly_written = self._mostly_written + 1 if mostly else 0
        if self._mostly_written == _WRITES_BEFORE_COPIES and not self.copies_only:
            self.copies_only = True  # said by the next copy: a finalizer does not log
