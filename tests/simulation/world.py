"""The simulated world: a virtual clock, and a shell that carries the core's actions out."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from tests.simulation.checker import Broken, Checker
from tests.simulation.crowd import FakeTrainer
from tests.simulation.fleet import Fleet
from tests.simulation.queuebook import QueueBook
from tests.simulation.scenario import Scenario, scenario_of
from tests.simulation.truth import Truth

from loaderd_protocol.messages import Release
from loaderd_server.core.actions import (
    Action,
    Assign,
    CommitCache,
    DropCache,
    Keep,
    KillWorker,
    MakeArena,
    MakeCache,
    PunchCache,
    StartWorker,
    StopWorker,
    Tell,
    WakeAt,
)
from loaderd_server.core.batchjob import BatchJob
from loaderd_server.core.engine import Core
from loaderd_server.core.events import Event, TimerFired, TrainerSaid
from loaderd_server.core.streams import Stream

_TRACE = 60
#: Far more than any schedule needs: one that comes here runs in circles.
_MOST_STEPS = 50_000


class Books(NamedTuple):
    """Who has which slot."""

    #: Slot number -> how often it is lent.
    loans: Counter[int]
    #: Stream -> announcements out, those without a slot too.
    lent: Counter[str]
    #: Slots that a job fills: in a worker's hands or waiting for one.
    filling: set[int]


class World:
    """One run of one seed."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.draws: random.Random = scenario.draws
        self.now = 0.0
        self.steps = 0
        self.trace: deque[tuple[float, Event, list[Action]]] = deque(maxlen=_TRACE)
        self.truth = Truth(scenario)
        self.core = Core(scenario.settings)
        self.check = Checker(self)
        self.fleet = Fleet(self)
        self.queues = QueueBook(self)
        #: Whether the daemon has died and was started again.
        self.restarted = False
        self._leases = len(scenario.trainers)
        self.trainers = [FakeTrainer(self, i + 1, t) for i, t in enumerate(scenario.trainers)]
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        self._wake = 0
        self._by_lease = {trainer.lease: trainer for trainer in self.trainers}

    # --- time -------------------------------------------------------------------------------

    def at(self, time: float, act: Callable[..., None], *args: object) -> None:
        """Plans something; equal times keep their order."""
        self._planned += 1
        heapq.heappush(self._agenda, (time, self._planned, act, args))

    def later(self, delay_s: float, act: Callable[..., None], *args: object) -> None:
        """Plans something from now."""
        self.at(self.now + delay_s, act, *args)

    def run(self) -> None:
        """From the start until every trainer that can has come to its end, and all is given back."""
        self._carry_out(self.core.start(0.0))
        self.fleet.open()
        for time in self.scenario.restarts:
            self.at(time, self._restart)
        for trainer in self.trainers:
            script = trainer.script
            self.at(script.attach_at, trainer.attach)
            for time, act in ((script.stop_at, trainer.stop), (script.crash_at, trainer.crash)):
                if time != float("inf"):
                    self.at(time, act)
        self._go(self._all_are_done)
        self.check.end()

    def _restart(self) -> None:
        """The daemon is killed and started again: it knows nothing, and its workers are gone."""
        if self._all_are_done():
            return
        self.restarted = True
        self._wake += 1
        self.fleet.is_dead = True
        self.core = Core(self.scenario.settings)
        self.check = Checker(self)
        self.fleet = Fleet(self)
        self._carry_out(self.core.start(self.now))
        self.fleet.open()
        for trainer in self.trainers:
            self._leases += 1
            trainer.lose_daemon(self._leases)

    def renamed(self, trainer: FakeTrainer, lease: int) -> None:
        """A trainer comes back with another lease."""
        self._by_lease[lease] = trainer

    def settle(self) -> None:
        """Goes on until nothing is planned but timers far away."""
        limit = self.now + 100.0
        self._go(lambda: not self._agenda or self._agenda[0][0] > limit)

    def _go(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if not self._agenda:
                raise Broken("nothing will ever happen again, and a trainer waits")
            self.now, _, act, args = heapq.heappop(self._agenda)
            act(*args)
            self.steps += 1
            self.check.that(self.steps < _MOST_STEPS, "the core runs in circles")

    def _all_are_done(self) -> bool:
        return all(trainer.is_gone or self.can_never_end(trainer) for trainer in self.trainers)

    def can_never_end(self, trainer: FakeTrainer) -> bool:
        """It was stopped for ever, or is at the end of a queue and one that was has a batch of it."""
        if trainer.is_stopped_for_ever:
            return True
        return trainer.is_queue and any(
            other.is_stopped_for_ever and other.script.stream == trainer.script.stream
            for other in self.trainers
        )

    # --- the core ---------------------------------------------------------------------------

    def trainer_said(self, event: TrainerSaid) -> None:
        """A trainer's message arrives, perhaps after the news of its end."""
        trainer = self._by_lease[event.lease]
        if event.lease not in self.core._leases:
            return
        if isinstance(event.message, Release) and not trainer.is_gone:
            loan = (event.message.sub, event.message.slot, event.message.generation)
            if loan in self.core._leases[event.lease]._held:
                self.check.released(event.lease, event.message)
        self.tell_core(event)

    def tell_core(self, event: Event) -> None:
        """One step: an event, the actions it leads to, and every rule."""
        self.check.heard(event)
        self.trace.append((self.now, event, []))
        actions = self.core.handle(event, self.now)
        self.trace[-1] = (self.now, event, actions)
        self.check.actions(actions)
        self._carry_out(actions)
        self.check.everything()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                trainer = self._by_lease[action.lease]
                if not trainer.is_gone:
                    trainer.hear(action.message)
            elif isinstance(action, Assign):
                self.fleet.assign(action)
            elif isinstance(action, StartWorker):
                self.fleet.start(action)
            elif isinstance(action, StopWorker):
                self.fleet.stop(action)
            elif isinstance(action, KillWorker):
                self.fleet.kill(action)
            elif isinstance(action, MakeArena):
                self.fleet.make_arena(action)
            elif isinstance(action, Keep):
                self.fleet.keep(action)
            elif isinstance(action, MakeCache):
                self.fleet.depot.make(action)
            elif isinstance(action, CommitCache):
                self.fleet.depot.commit(action)
            elif isinstance(action, PunchCache):
                self.fleet.depot.punch(action)
            elif isinstance(action, DropCache):
                self.fleet.depot.drop(action)
            elif isinstance(action, WakeAt):
                self._wake += 1
                self.at(max(action.at, self.now), self._fire, self._wake)

    def _fire(self, number: int) -> None:
        if number == self._wake:
            self.tell_core(TimerFired())

    # --- looking inside ---------------------------------------------------------------------

    def streams(self) -> Iterable[Stream]:
        """The core's streams."""
        return self.core._streams.values()

    def stream(self, name: str) -> Stream:
        """One of them."""
        return self.core._streams[name]

    def books(self) -> Books:
        """What the leases, the dispatcher and the queues say of slots."""
        loans: Counter[int] = Counter()
        lent: Counter[str] = Counter()
        for lease in self.core._leases.values():
            for held in lease._held.values():
                for cursor, slot in held:
                    lent[cursor.sequence.stream.name] += 1
                    if slot is not None:
                        loans[slot.number] += 1
        filling = [job.slot.number for job in self.jobs() if job.slot is not None]
        self.check.that(len(filling) == len(set(filling)), f"two jobs for one slot: {filling}")
        return Books(loans, lent, set(filling))

    def jobs(self) -> Iterator[BatchJob]:
        """Batches that wait for a worker, and those in workers' hands."""
        for team in self.core._dispatcher.teams.values():
            for _, _, job in team._queue:
                if isinstance(job, BatchJob):
                    yield job
            for worker in team.workers.values():
                for given in worker.hands:
                    if isinstance(given.job, BatchJob):
                        yield given.job

    def workers_are_stillborn(self) -> bool:
        """Whether workers may die so often at their start that batches fail for it."""
        return any(script.stillborn >= 5 for script in self.scenario.datasets)


def run_seed(seed: int) -> World:
    """Runs a seed to its end.

    Raises: Broken where a rule does not hold, with the last steps before it.
    """
    world = World(scenario_of(seed))
    try:
        world.run()
    except Exception as error:
        raise Broken(f"seed {seed}: {error}\n{tail(world)}") from error
    return world


def tail(world: World) -> str:
    """The last steps, in words."""
    lines = [f"{world.scenario.settings}", *(f"{d}" for d in world.scenario.datasets)]
    lines += [f"{i + 1}: {t}" for i, t in enumerate(world.scenario.trainers)]
    for step in world.trace:
        time, event, actions = step
        lines.append(f"{time:.4f} {event}")
        lines += [f"         -> {action}" for action in actions]
    return "\n".join(lines)
