"""A trainer of the chaos run: checks every batch against the oracle, goes on from its last state."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.chaos.journal import Journal, read
from tests.chaos.material import Role
from tests.chaos.oracle import Oracle, digest_of

import loaderd

#: Exit code of a trainer that was given something wrong.
WRONG = 3
RECONNECT_S = 60.0
#: Who writes on every batch is given copies; views are to be tried too.
_WRITES_EACH = 5


class Wrong(Exception):
    """A batch, its place or a state is not what the oracle says."""


class Trainer:
    """One process in one role."""

    def __init__(self, role: Role, journal: Journal, loader: loaderd.Loader) -> None:
        self._role = role
        self._journal = journal
        self._loader = loader
        self._oracle = Oracle(role)
        #: The batch that comes next, as (epoch, number); None until the daemon has said (guests).
        self._next: tuple[int, int] | None = None if role.guest_for or role.is_queue else (0, 0)
        #: The batch before the one in hand is looked at again: nobody may have written on it.
        self._before: tuple[Any, str] | None = None
        self._taken = 0
        self._stops = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: Any) -> None:
        self._stops = True

    def resume(self, state: dict[str, Any]) -> None:
        """Goes on where this role's last process was."""
        self._loader.load_state_dict(state)
        if not self._role.is_queue:
            self._next = state["epoch"], state["batches"]

    def work(self) -> None:
        """Epoch after epoch, until told to stop.

        Raises: Wrong.
        """
        while not self._stops:
            for batch in self._loader:
                self._take(batch)
                if self._stops or (self._role.guest_for and self._taken >= self._role.guest_for):
                    self._journal.write("left")
                    return
            self._ended()

    def _take(self, batch: Any) -> None:
        found = digest_of(batch)
        epoch, number = self._identify(found)
        daemon = self._loader.connection.daemon_pid
        self._journal.write("took", daemon=daemon, epoch=epoch, batch=number)
        if self._role.work_s:
            time.sleep(self._role.work_s)
        self._look_again(batch, found)
        self._taken += 1
        self._journal.write(
            "state", daemon=daemon, epoch=epoch, batch=number, note=self._state(epoch, number)
        )

    def _identify(self, found: str) -> tuple[int, int]:
        """Which batch it is, which must be the one that comes next; in a queue, any of the epoch."""
        state = self._loader.state_dict()
        if self._next is None:
            self._next = state["epoch"], state["batches"] - 1
        epoch, number = self._next
        if self._role.is_queue:
            epoch = state["epoch"]
            self._next = None
            truth = self._oracle.epoch(epoch)
            if found not in truth:
                raise Wrong(f"{found} is no batch of epoch {epoch}; state {state}")
            return epoch, truth.index(found)
        truth = self._oracle.epoch(epoch)
        if number >= len(truth) or truth[number] != found:
            raise Wrong(
                f"batch {number} of epoch {epoch} (of {len(truth)}) came as {self._what(found)}; "
                f"state {state}"
            )
        self._next = epoch, number + 1
        return epoch, number

    def _what(self, found: str) -> str:
        """What a digest is of, as far as the oracle is asked about nearby epochs."""
        epoch = 0 if self._next is None else self._next[0]
        for near in range(max(0, epoch - 2), epoch + 3):
            if found in self._oracle.epoch(near):
                return f"batch {self._oracle.epoch(near).index(found)} of epoch {near}"
        return f"bytes that belong to no batch near it ({found})"

    def _look_again(self, batch: Any, found: str) -> None:
        if self._before is not None:
            kept, was = self._before
            if digest_of(kept) != was:
                raise Wrong(f"batch {was} changed while it was held")
            if self._taken % _WRITES_EACH == 0:
                kept["row"].zero_()  # this trainer's own pages: nobody else may see it
        self._before = batch, found

    def _state(self, epoch: int, number: int) -> dict[str, Any]:
        state = self._loader.state_dict()
        samples = min((number + 1) * self._oracle.batch_size, self._oracle.samples_in(epoch))
        is_counted = not self._role.is_queue
        if state["epoch"] != epoch or (is_counted and state["samples"] != samples):
            raise Wrong(f"after batch {number} of epoch {epoch} the state is {state}")
        return state

    def _ended(self) -> None:
        epoch = self._loader.state_dict()["epoch"] - 1
        if not self._role.is_queue and self._next is not None:
            began, number = self._next
            length = len(self._oracle.epoch(began))
            if (began, number) != (epoch, length):
                raise Wrong(f"epoch {epoch} ended before batch {number} of {length} ({began})")
            self._next = epoch + 1, 0
        self._journal.write(
            "ended",
            epoch=epoch,
            daemon=self._loader.connection.daemon_pid,
            note=self._loader.state_dict(),
        )


def last_state(path: Path) -> dict[str, Any] | None:
    """The state of this role's last process as of its last batch."""
    states = [entry.note for entry in read(path) if entry.kind in ("state", "ended")]
    return states[-1] if states else None


def run(role: Role, address: Path, path: Path) -> int:
    """A trainer from its start to its end; the exit code."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    state = None if role.guest_for else last_state(path)
    journal = Journal(path)
    journal.write("began")
    try:
        with _connect(role, address) as loader:
            trainer = Trainer(role, journal, loader)
            if state is not None:
                trainer.resume(state)
            trainer.work()
    except Wrong as wrong:
        journal.write("wrong", note=str(wrong))
        return WRONG
    journal.close()
    return 0


def _connect(role: Role, address: Path) -> loaderd.Loader:
    """Attaches, waiting for the daemon where it is not there just now."""
    deadline = time.monotonic() + RECONNECT_S
    while True:
        try:
            return loaderd.connect(
                role.stream,
                address=os.fspath(address),
                rank=role.rank,
                world_size=role.world_size,
                seed=role.seed,
                batch_size=role.batch_size,
                prefetch=role.prefetch,
                start="live" if role.guest_for else None,
                reconnect_s=RECONNECT_S,
            )
        except (loaderd.DaemonNotRunning, loaderd.DaemonLost):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
