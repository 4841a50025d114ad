"""The monkey: kills, stops and restarts what the run has started, by the seed."""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

import psutil
from tests.chaos.belongings import workers_of
from tests.chaos.fleet import Fleet
from tests.chaos.material import GUESTS

#: How often each deed is in a deck; decks are shuffled and played one after the other.
_DECK = {
    "kill trainer": 7,
    "stop trainer": 7,
    "guest": 7,
    "kill worker": 6,
    "stop worker": 4,
    "kill zygote": 1,
    "stop daemon": 3,
    "kill daemon": 1,
    "replace daemon": 1,
}
#: The first card of that kind comes after so many others: short runs have it too.
_KILL_DAEMON_AFTER = 6
_BETWEEN_S = (0.05, 0.45)
_TRAINER_STOP_S = (0.1, 3.0)
_OTHER_STOP_S = (0.05, 2.0)
#: A daemon that was started lives so long at least: trainers come back before the next one.
_DAEMON_LIVES_S = 4.0
#: A zygote that was there for so long died for the first time. The daemon lets those that die young
#: rest, longer each time, and gives the dataset up in the end: so there are few in a row.
_ZYGOTE_STEADY_S = 16.0
_MOST_ZYGOTE_DEATHS = 3


class Monkey:
    """Plays deeds at random times. Its log says what it did, and when since the start."""

    def __init__(self, fleet: Fleet, seed: int, daemon_stays_from: float) -> None:
        self._fleet = fleet
        self._rng = random.Random(seed)
        self._began = time.monotonic()
        #: From then on (monotonic clock) the daemon is not killed: its memory is watched.
        self._daemon_stays_from = daemon_stays_from
        #: Of zygotes in a row, each young.
        self._zygote_deaths = 0
        self._deck: list[str] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self._deeds: dict[str, Callable[[], str | None]] = {
            "kill trainer": self._kill_trainer,
            "stop trainer": self._stop_trainer,
            "guest": self._guest,
            "kill worker": self._kill_worker,
            "stop worker": self._stop_worker,
            "kill zygote": self._kill_zygote,
            "stop daemon": self._stop_daemon,
            "kill daemon": self._kill_daemon,
            "replace daemon": self._replace_daemon,
        }
        self._at(self._between(), self._play)

    def next_at(self) -> float:
        """When it wants to be let loose again (monotonic clock)."""
        return self._due[0][0]

    def let_loose(self) -> None:
        """Does what is due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def calm_down(self) -> None:
        """Undoes what would be undone later, and plays no more."""
        while self._due:
            deed = heapq.heappop(self._due)[2]
            if deed != self._play:
                deed()

    # --- the game ---------------------------------------------------------------------------

    def _at(self, delay_s: float, deed: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (time.monotonic() + delay_s, self._number, deed))

    def _between(self) -> float:
        return self._rng.uniform(*_BETWEEN_S)

    def _play(self) -> None:
        if not self._deck:
            self._deck = [name for name, count in _DECK.items() for _ in range(count)]
            self._rng.shuffle(self._deck)
            if not self.done:
                self._deck.remove("kill daemon")
                self._deck.insert(-_KILL_DAEMON_AFTER, "kill daemon")
        name = self._deck.pop()
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it was faster
            told = self._deeds[name]()
            if told is not None:
                self.done[name] += 1
                self._note(f"{name}: {told}")
        self._at(self._between(), self._play)

    def _note(self, text: str) -> None:
        now = time.monotonic()
        self.log.append(f"{now - self._began:8.3f} s ({now:.3f})  {text}")
        with (self._fleet.home / "deeds.log").open("a") as file:
            file.write(f"{self.log[-1]}\n")

    # --- deeds: each tells what it did, or None where there was nothing to do ---------------

    def _some_trainer(self) -> tuple[str, int] | None:
        running = sorted((name, pid) for name, pid in self._fleet.trainers.items() if pid)
        return self._rng.choice(running) if running else None

    def _kill_trainer(self) -> str | None:
        chosen = self._some_trainer()
        if chosen is None:
            return None
        os.kill(chosen[1], signal.SIGKILL)
        return f"{chosen[0]}, pid {chosen[1]}"

    def _stop_trainer(self) -> str | None:
        chosen = self._some_trainer()
        return None if chosen is None else self._pause(*chosen, _TRAINER_STOP_S)

    def _guest(self) -> str | None:
        guest = self._rng.choice(GUESTS)
        if guest.name in self._fleet.trainers:
            return None
        self._fleet.start(guest)
        return guest.name

    def _process(self, kind: int) -> psutil.Process | None:
        daemon = self._fleet.daemon_pid()
        there = workers_of(daemon)[kind] if daemon else []
        return self._rng.choice(there) if there else None

    def _kill_worker(self) -> str | None:
        process = self._process(1)
        if process is None:
            return None
        process.kill()
        return f"pid {process.pid}"

    def _kill_zygote(self) -> str | None:
        process = self._process(0)
        if process is None:
            return None
        is_steady = time.time() - process.create_time() >= _ZYGOTE_STEADY_S
        if not is_steady and self._zygote_deaths >= _MOST_ZYGOTE_DEATHS:
            return None
        self._zygote_deaths = 1 if is_steady else self._zygote_deaths + 1
        process.kill()
        return f"pid {process.pid}"

    def _stop_worker(self) -> str | None:
        process = self._process(1)
        if process is None:
            return None
        stop_s = self._rng.uniform(*_OTHER_STOP_S)
        process.suspend()
        self._at(stop_s, lambda: _resume(process))
        return f"pid {process.pid} for {stop_s:.2f} s"

    def _stop_daemon(self) -> str | None:
        pid = self._fleet.daemon_pid()
        return self._pause("daemon", pid, _OTHER_STOP_S) if pid else None

    def _pause(self, name: str, pid: int, between_s: tuple[float, float]) -> str | None:
        if pid in self._fleet.stopped:
            return None
        stop_s = self._rng.uniform(*between_s)
        self._fleet.pause(pid)
        self._at(stop_s, lambda: self._fleet.resume(pid))
        return f"{name}, pid {pid}, for {stop_s:.2f} s"

    def _may_end_daemon(self) -> bool:
        now = time.monotonic()
        is_old = now - self._fleet.daemon_since >= _DAEMON_LIVES_S
        return bool(self._fleet.daemon_pid()) and is_old and now < self._daemon_stays_from

    def _kill_daemon(self) -> str | None:
        if not self._may_end_daemon():
            return None
        pid = self._fleet.daemon_pid()
        self._fleet.kill_daemon()
        away_s = self._rng.uniform(0.0, 1.0)
        self._at(away_s, self._serve)
        return f"pid {pid}; another in {away_s:.2f} s"

    def _replace_daemon(self) -> str | None:
        if not self._may_end_daemon():
            return None
        pid = self._fleet.daemon_pid()
        self._fleet.stop_daemon()
        self._serve()
        return f"pid {pid} by pid {self._fleet.daemon_pid()}"

    def _serve(self) -> None:
        self._fleet.serve()
        self._note(f"daemon started, pid {self._fleet.daemon_pid()}")


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()
