"""Random reloads under random work: no arena is dropped that a trainer reads or a worker writes in."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.unit.core.driver import Bench, done, settings_of

from loaderd_protocol.messages import Announce, Refused, Start, Subscribe
from loaderd_server.core.actions import DropArena, MakeArena
from loaderd_server.core.events import DatasetReady, LeaseBegan, StreamsChanged, WorkerEnded
from loaderd_server.core.settings import Mode, StreamSettings
from loaderd_server.core.tasks import BatchTask, ProbeDone, ProbeTask

STEPS = 120
SEEDS_A_TEST = 40


class Game:
    """One seed: trainers, workers and reloads in random order on a bench."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        base = settings_of(workers=2, depth=2, streams=3, batch_size=3)
        modes = [self.dice.choice((Mode.BROADCAST, Mode.QUEUE)) for _ in range(3)]
        streams = tuple(
            replace(stream, mode=mode, dataset=f"d{number % 2}")
            for number, (stream, mode) in enumerate(zip(base.streams, modes, strict=True))
        )
        self.bench = Bench(replace(base, streams=streams))
        self.streams = {stream.name: stream for stream in streams}
        self.spare = {stream.name: stream for stream in streams}
        self.leases = 0
        #: What each living trainer has in hand.
        self.given: dict[int, int] = {}
        self.hands: dict[int, list[Announce]] = {}

    def play(self) -> None:
        moves = [self.come, self.come, self.go, self.work, self.work, self.work, self.die]
        moves += [self.release, self.release, self.release, self.change]
        for _ in range(STEPS):
            self.dice.choice(moves)()
            self.collect()
            self.check()
        self.clear_up()

    # --- moves ------------------------------------------------------------------------------

    def come(self) -> None:
        if not self.streams or len(self.hands) >= 4:
            return
        self.leases += 1
        self.hands[self.leases], self.given[self.leases] = [], 0
        self.bench.event(LeaseBegan(self.leases))
        self.bench.say(
            self.leases, Subscribe(0, self.dice.choice(sorted(self.streams)), 0, 1, 2, 0)
        )
        if not self.bench.messages(self.leases, Refused):
            self.bench.say(self.leases, Start(0, 1, 0, 0))

    def go(self) -> None:
        if self.hands:
            lease = self.dice.choice(sorted(self.hands))
            del self.hands[lease]
            self.bench.leave(lease)

    def work(self) -> None:
        if busy := [worker for worker, tasks in self.bench.hands.items() if tasks]:
            self._finish(self.dice.choice(busy))

    def _finish(self, worker: int) -> None:
        task = self.bench.hands[worker][0]
        assert isinstance(task, BatchTask | ProbeTask), task
        self.bench.answer(
            worker, done(task) if isinstance(task, BatchTask) else ProbeDone(task.task)
        )

    def die(self) -> None:
        busy = [worker for worker, tasks in self.bench.hands.items() if tasks]
        if busy and self.dice.random() < 0.3:
            self.bench.die(self.dice.choice(busy))

    def release(self) -> None:
        if holders := [lease for lease, told in self.hands.items() if told]:
            lease = self.dice.choice(holders)
            told = self.hands[lease].pop(self.dice.randrange(len(self.hands[lease])))
            self.bench.release(lease, told)

    def change(self) -> None:
        """Each stream stays, changes, goes or comes back; perhaps a dataset is built again."""
        again = {f"d{self.dice.randrange(2)}"} if self.dice.random() < 0.3 else set()
        removed, added = [], []
        before = {stream.dataset for stream in self.streams.values()}
        for name, stream in self.spare.items():
            is_there = name in self.streams
            fate = self.dice.choice(("stay", "stay", "change", "go"))
            if is_there and (fate != "stay" or stream.dataset in again):
                removed.append(name)
                del self.streams[name]
            if (is_there and fate != "go" and name in removed) or (not is_there and fate == "stay"):
                added.append(self._with_new_size(stream))
        self.streams.update((stream.name, stream) for stream in added)
        self._tell(removed, added, before, again)

    def _with_new_size(self, stream: StreamSettings) -> StreamSettings:
        return replace(stream, batch_size=self.dice.randint(1, 4))

    def _tell(
        self, removed: list[str], added: list[StreamSettings], before: set[str], again: set[str]
    ) -> None:
        after = {stream.dataset for stream in self.streams.values()}
        gone = tuple(sorted(name for name in before if name in again or name not in after))
        ending = [w for w in self.bench.core.status().workers if w.dataset in gone]
        self.bench.event(StreamsChanged(tuple(removed), tuple(added), gone))
        for dataset in sorted(after - (before - set(gone))):
            self.bench.event(DatasetReady(dataset, 12))
        for worker in ending:
            self.bench.hands.pop(worker.number, None)
            self.bench.event(WorkerEnded(worker.number, "ended with its dataset", None))

    # --- rules ------------------------------------------------------------------------------

    def collect(self) -> None:
        """What trainers were told of is in their hands."""
        for lease, told in self.hands.items():
            announced = self.bench.messages(lease, Announce)
            told += announced[self.given[lease] :]
            self.given[lease] = len(announced)

    def check(self) -> None:
        arenas = [action.arena for action in self.bench.done_so_far(DropArena)]
        dropped = set(arenas)
        assert len(arenas) == len(dropped), "an arena was dropped twice"
        assert not dropped & {told.arena for hand in self.hands.values() for told in hand}
        written = {
            task.place.arena
            for tasks in self.bench.hands.values()
            for task in tasks
            if isinstance(task, BatchTask)
        }
        assert not dropped & written
        assert {status.name for status in self.bench.core.status().streams} == set(self.streams)

    def clear_up(self) -> None:
        """When all is released and answered, only streams that are there have arenas."""
        for lease in sorted(self.hands):
            self.bench.leave(lease)
        self.hands.clear()
        while busy := [worker for worker, tasks in self.bench.hands.items() if tasks]:
            self._finish(busy[0])
        self.check()
        made = {a.arena: a.slot_bytes * a.count for a in self.bench.done_so_far(MakeArena)}
        left = sum(made.values()) - sum(
            made[action.arena] for action in self.bench.done_so_far(DropArena)
        )
        assert left == sum(status.arena_bytes for status in self.bench.core.status().streams)
        assert self.bench.core._reloading._leaving == []
        assert not self.bench.closed()


@pytest.mark.parametrize("first", range(0, 200, SEEDS_A_TEST))
def test_reloads_never_take_what_is_in_use_and_leave_nothing(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        try:
            Game(seed).play()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
