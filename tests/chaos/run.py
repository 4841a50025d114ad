"""``python -m tests.chaos.run --seconds N --seed S``: a daemon and its trainers under a monkey.

The exit code is 0 where every batch was right, none was missing, nobody hung and nothing is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos import verdict
from tests.chaos.belongings import least_descriptors, own_bytes, processes_marked, workers_of
from tests.chaos.fleet import Ended, Failed, Fleet
from tests.chaos.journal import Entry, read
from tests.chaos.material import BY_NAME, GUESTS, MEMORY_BYTES, ROLES
from tests.chaos.monkey import Monkey
from tests.chaos.oracle import Oracle
from tests.chaos.watch import HANG_S, MemoryWatch, ProgressWatch, size_of

#: Of the run's time, the last part is without a new daemon, so that its memory can be watched.
_DAEMON_STAYS_AFTER = 0.55
#: Own memory that a daemon may gain while it lives: buffers and caches find their size.
_MOST_GROWTH_BYTES = 12 << 20
#: The same for a trainer, a zygote and a worker, against those of the beginning.
_MOST_DIFFERENCE_BYTES = 32 << 20
_QUIET_S = 1.0
_LOOK_S = 0.25
#: Orders of epochs are kept for a while, each a descriptor: of six sequences, at most so many.
_MOST_ORDERS = 60
_ORDERS = "/memfd:loaderd-order "
#: A role is at work when its journal has grown by so much.
_AT_WORK_BYTES = 8000


class Run:
    """One run from its start to its verdict."""

    def __init__(self, home: Path, seconds: float, seed: int) -> None:
        self.home = home
        self._seconds = seconds
        self._seed = seed
        self._name = f"{os.getpid()}.{seed}"
        self._shared_memory = set(os.listdir("/dev/shm"))
        self._fleet = Fleet(home, self._name)
        self._progress = ProgressWatch(self._fleet)
        self._memory = MemoryWatch(self._fleet)
        self._monkey: Monkey | None = None
        self._growth_bytes = 0

    def go(self) -> str:
        """The whole run; returns what it counted.

        Raises: Failed, verdict.Gap.
        """
        try:
            self._fleet.serve()
            for role in ROLES:
                self._fleet.start(role)
            calm = self._calm()
            self._chaos()
            self._compare(calm, self._calm())
            remade = self._stop()
        except Failed as failed:
            raise Failed(f"{failed}\n{self._evidence()}") from None
        finally:
            self._fleet.close()
        self._nothing_is_left()
        return self._report(remade)

    # --- the course -------------------------------------------------------------------------

    def _chaos(self) -> None:
        end = time.monotonic() + self._seconds
        stays_from = time.monotonic() + self._seconds * _DAEMON_STAYS_AFTER
        self._monkey = monkey = Monkey(self._fleet, self._seed, stays_from)
        while time.monotonic() < end:
            self._step(min(monkey.next_at(), end))
            monkey.let_loose()
        monkey.calm_down()

    def _step(self, until: float) -> None:
        """Waits for what happens, and looks after everyone."""
        ended = self._fleet.next_event(min(_LOOK_S, until - time.monotonic()))
        if ended is not None:
            self._went(ended)
        self._progress.look()
        self._memory.look()
        daemon = self._fleet.daemon
        if daemon is not None and daemon.poll() is not None:
            raise Failed(f"the daemon ended by itself, with exit code {daemon.returncode}")

    def _went(self, ended: Ended) -> None:
        """A trainer is gone: killed ones are started again, guests may leave; nobody else may."""
        role = BY_NAME[ended.role]
        if role.guest_for and ended.code in (0, -signal.SIGKILL):
            return
        if ended.code != -signal.SIGKILL:
            raise Failed(f"{ended}: {self._words_of(ended.role)}")
        self._fleet.start(role)

    def _calm(self) -> dict[str, tuple[Counter[str], int]]:
        """Waits until everyone is at work and guests are gone; what each process holds then."""
        sizes = {role.name: size_of(self.home / f"{role.name}.journal") for role in ROLES}
        while self._guests() or not all(
            size_of(self.home / f"{name}.journal") - size > _AT_WORK_BYTES
            for name, size in sizes.items()
        ):
            self._step(time.monotonic() + _LOOK_S)
        zygotes, workers = workers_of(self._fleet.daemon_pid())
        pids = {
            "daemon": self._fleet.daemon_pid(),
            "zygote": zygotes[0].pid,
            "worker": workers[0].pid,
            **self._fleet.trainers,
        }
        quiet_s = _QUIET_S / len(pids)
        return {
            name: (
                least_descriptors(pid, _QUIET_S if name == "daemon" else quiet_s),
                own_bytes(pid),
            )
            for name, pid in pids.items()
        }

    def _guests(self) -> list[str]:
        return [guest.name for guest in GUESTS if guest.name in self._fleet.trainers]

    def _compare(
        self,
        before: dict[str, tuple[Counter[str], int]],
        after: dict[str, tuple[Counter[str], int]],
    ) -> None:
        """Nobody holds more than in the calm before."""
        for name, (descriptors, size) in after.items():
            more = descriptors - before[name][0]
            if more.pop(_ORDERS, 0) and descriptors[_ORDERS] > _MOST_ORDERS:
                raise Failed(f"{name} holds {descriptors[_ORDERS]} orders, over {_MOST_ORDERS}")
            if more:
                raise Failed(f"{name} holds more descriptors than before: {dict(more)}")
            if name != "daemon" and size - before[name][1] > _MOST_DIFFERENCE_BYTES:
                raise Failed(f"{name} has grown from {before[name][1]} to {size} bytes")
        self._growth_bytes = self._memory.growth_bytes()
        if self._growth_bytes > _MOST_GROWTH_BYTES:
            raise Failed(f"a daemon's own memory grew by {self._growth_bytes} bytes")

    def _stop(self) -> int:
        """Trainers leave, then the daemon; returns how many batches were remade by the last one."""
        for pid in self._fleet.trainers.values():
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + HANG_S
        while self._fleet.trainers:
            ended = self._fleet.next_event(_LOOK_S)
            if ended is not None and ended.code != 0:
                raise Failed(f"{ended}: {self._words_of(ended.role)}")
            if time.monotonic() > deadline:
                raise Failed(f"told to stop, these did not: {self._fleet.trainers}")
        status = json.loads(self._fleet.status())
        if status["trainers"]:
            raise Failed(f"trainers are gone, but the daemon lists {status['trainers']}")
        held = {s["name"]: s["slots_held"] for s in status["streams"] if s["slots_held"]}
        if held:
            raise Failed(f"trainers are gone, but slots are held: {held}")
        if status["memory"]["arena_bytes"] > MEMORY_BYTES:
            raise Failed(f"arenas are larger than `memory`: {status['memory']}")
        self._fleet.stop_daemon()
        return sum(stream["batches_remade"] for stream in status["streams"])

    # --- the verdict ------------------------------------------------------------------------

    def _nothing_is_left(self) -> None:
        processes = processes_marked(self._name)
        if processes:
            raise Failed(f"processes are left: {processes}")
        files = {*os.listdir(self._fleet.run_dir)} - {"lock"}
        files |= {*os.listdir(self._fleet.temporary)}
        files |= {
            name
            for name in {*os.listdir("/dev/shm")} - self._shared_memory
            if not name.startswith("sem.")  # these come and go with other programs
        }
        if files:
            raise Failed(f"files are left: {sorted(files)}")

    def _report(self, remade: int) -> str:
        journals = {role.name: list(read(self.home / f"{role.name}.journal")) for role in ROLES}
        for role in ROLES:
            if not role.is_queue:
                length = len(Oracle(role).epoch(0))
                verdict.check_ordered(role.name, journals[role.name], length)
        queues = [role for role in ROLES if role.is_queue]
        length = len(Oracle(queues[0]).epoch(0))
        queue = verdict.check_queue({role.name: journals[role.name] for role in queues}, length)
        guests = [list(read(self.home / f"{guest.name}.journal")) for guest in GUESTS]
        return "\n".join(
            (
                *self._lines(journals, guests, queue),
                f"batches made again by the last daemon: {remade}",
                f"longest time that a trainer went without a batch: {self._progress.longest_s:.1f} s",
                f"the daemon's own memory grew by {self._growth_bytes / 2**20:.1f} MiB at most",
            )
        )

    def _lines(
        self,
        journals: dict[str, list[Entry]],
        guests: list[list[Entry]],
        queue: verdict.QueueTally,
    ) -> list[str]:
        assert self._monkey is not None
        lines = [f"{name:<16}{count:>6}" for name, count in sorted(self._monkey.done.items())]
        lines.append(
            f"{'role':<10}{'processes':>10}{'batches':>9}{'epochs':>8}{'repeated':>10}{'reattached':>12}"
        )
        for name, entries in journals.items():
            t = verdict.tally(name, entries)
            lines.append(
                f"{name:<10}{t.processes:>10}{t.batches:>9}{t.epochs:>8}{t.repeated:>10}{t.reattached:>12}"
            )
        took = sum(entry.kind == "took" for entries in guests for entry in entries)
        began = sum(entry.kind == "began" for entries in guests for entry in entries)
        lines.append(f"guests: {began} joined and took {took} batches")
        lines.append(f"queue: {queue.epochs} epochs ended, {queue.given_again} batches given again")
        return lines

    def _words_of(self, role: str) -> str:
        wrong = [
            entry.note for entry in read(self.home / f"{role}.journal") if entry.kind == "wrong"
        ]
        errors = self.home / f"{role}.stderr"
        tail = errors.read_text(errors="replace")[-3000:] if errors.exists() else ""
        return f"{wrong}\n{tail}"

    def _evidence(self) -> str:
        """What a person needs to find the fault."""
        status = self._fleet.status()
        for pid in filter(None, self._fleet.trainers.values()):
            os.kill(pid, signal.SIGUSR1)  # faulthandler: each writes its stack to its stderr
        time.sleep(0.5)
        parts = [f"--- status\n{status}"]
        if self._monkey is not None:
            parts.append("--- deeds\n" + "\n".join(self._monkey.log[-40:]))
        for name in sorted(self._fleet.trainers):
            parts.append(f"--- {name}\n{self._words_of(name)}")
        log = self._fleet.log.read_text(errors="replace").splitlines()
        return "\n".join((*parts, "--- daemon's log", *log[-60:]))


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="a daemon and its trainers under a monkey")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--keep", action="store_true", help="leave journals and logs where they are"
    )
    asked = parser.parse_args()
    seed = random.randrange(1 << 31) if asked.seed is None else asked.seed
    home = Path(tempfile.mkdtemp(prefix="loaderd-chaos-"))
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # ends the daemon too
    try:
        told = Run(home, asked.seconds, seed).go()
    except (Failed, verdict.Gap) as failed:
        sys.stdout.write(f"{failed}\nseed {seed} failed; journals and logs are in {home}\n")
        return 1
    if not asked.keep:
        shutil.rmtree(home)
    sys.stdout.write(f"{told}\nseed {seed}: {asked.seconds:g} s of chaos; every batch was right\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
