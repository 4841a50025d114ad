"""Fake trainers: they behave as the client does, and as processes do that stop, crash or go mad."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.fleet import Contents
from tests.simulation.scenario import TrainerScript
from tests.simulation.truth import truth_rank

from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    BatchEmpty,
    BatchFailed,
    EpochStarted,
    Granted,
    Leave,
    Refused,
    Release,
    Start,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from loaderd_server.core.actions import Outgoing
from loaderd_server.core.events import LeaseBegan, LeaseEnded, TrainerSaid
from loaderd_server.core.tasks import BatchAddress

if TYPE_CHECKING:
    from tests.simulation.world import World

_SUB = 7
_MAD_SUB = 1234
Said = Subscribe | Start | Unsubscribe | Release | Leave


@dataclass(frozen=True)
class View:
    """A batch in a trainer's hands, with what it saw there first."""

    release: Release
    place: tuple[int, int] | None
    contents: Contents | None


class FakeTrainer:
    """One trainer with one subscription at a time."""

    def __init__(self, world: World, lease: int, script: TrainerScript) -> None:
        self._world = world
        self._draws = world.draws
        self.lease = lease
        self.script = script
        settings = world.truth.streams[script.stream]
        self._settings = settings
        self._rank = truth_rank(settings, script.rank, script.world_size)
        self._epoch = script.epoch
        self._epochs_left = script.epochs
        self._iteration = 0
        self._credits = 0
        self._batches = -1
        self._next = 0
        self._inbox: deque[View] = deque()
        self._kept: deque[View] = deque()
        self._is_working = False
        self.is_attached = False
        self.is_gone = False
        self.is_stopped = False
        #: Since when it has waited for the daemon; None while it does not.
        self.waits_since: float | None = None
        #: It has said Leave: it hears nothing more, and may still look at what it kept.
        self.has_left = False
        self._mail: deque[Outgoing] = deque()
        self._last_said = {True: 0.0, False: 0.0}
        self._last_heard = 0.0
        self.delivered = 0

    # --- its life ---------------------------------------------------------------------------

    def attach(self) -> None:
        """Begins the lease, subscribes; unless it was killed before."""
        if self.is_gone:
            return
        self.is_attached = True
        self._world.tell_core(LeaseBegan(self.lease))
        script = self.script
        self._say(
            Subscribe(
                _SUB, script.stream, script.rank, script.world_size, script.prefetch, self._epoch
            )
        )
        if script.is_hasty:
            self._start(self._first_batch())
        self.waits_since = self._world.now

    def crash(self) -> None:
        """SIGKILL; what it has said may arrive after the news of its death."""
        if self.is_gone or not self.is_attached:
            self.is_gone = True
            return
        self.is_gone = True
        self.waits_since = None
        self._world.tell_core(LeaseEnded(self.lease))

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        if math.isfinite(self.script.stop_s):
            self._world.later(self.script.stop_s, self._go_on)

    def _go_on(self) -> None:
        self.is_stopped = False
        if self.waits_since is not None:
            self.waits_since = self._world.now
        if self.has_left:
            self._last_view()
        while self._mail and not self.is_gone and not self.has_left:
            self._read(self._mail.popleft())
        self._work()

    def views(self) -> list[View]:
        """All it may look at."""
        return [*self._inbox, *self._kept]

    # --- talking ----------------------------------------------------------------------------

    def _say(self, message: Said) -> None:
        """Releases go by the lease socket, the rest by ZeroMQ: each keeps its own order."""
        is_release = isinstance(message, Release | Leave)
        at = max(self._last_said[is_release], self._world.now + self._draws.uniform(0, 0.002))
        self._last_said[is_release] = at
        self._world.at(at, self._world.trainer_said, TrainerSaid(self.lease, message))

    def hear(self, message: Outgoing) -> None:
        """A message comes in, after those before it."""
        at = max(self._last_heard, self._world.now + self._draws.uniform(0, 0.002))
        self._last_heard = at
        self._world.at(at, self._heard, message)

    def _heard(self, message: Outgoing) -> None:
        if self.is_gone or self.has_left:
            return
        if self.is_stopped:
            self._mail.append(message)
            return
        self._read(message)
        self._work()

    def _read(self, message: Outgoing) -> None:
        check = self._world.check
        if isinstance(message, Refused) and message.sub == _MAD_SUB:
            return
        check.that(message.sub == _SUB, message, "for a sub that is not there")
        if isinstance(message, Subscribed):
            check.that(message.credits >= 1, message, "without a credit")
            batches = len(self._truth_batches(self.script.epoch))
            check.that(message.batches == batches, message, "but there are", batches)
            self._credits = message.credits
            if not self.script.is_hasty:
                self._start(self._first_batch())
        elif isinstance(message, Granted):
            self._credits = message.credits
        elif isinstance(message, EpochStarted):
            if message.iteration == self._iteration:
                self._batches = message.batches
                batches = len(self._truth_batches(self._epoch))
                check.that(message.batches == batches, message, "but there are", batches)
        elif isinstance(message, (Refused, Unsubscribed)):
            self._bye(message)
        else:
            self._given(message)

    def _bye(self, message: Refused | Unsubscribed) -> None:
        if isinstance(message, Refused):
            self._world.check.refusal(self, message)
        self.crash()

    # --- batches ----------------------------------------------------------------------------

    def _truth_batches(self, epoch: int) -> list[list[int]]:
        return self._world.truth.batches(self.script.stream, epoch, *self._rank)

    def _first_batch(self) -> int:
        return int(self.script.batch_share * len(self._truth_batches(self._epoch)))

    def _start(self, batch: int) -> None:
        self._iteration += 1
        self._next = batch
        self._batches = -1
        while self._inbox:
            self._say(self._inbox.popleft().release)
        self._say(Start(_SUB, self._iteration, self._epoch, batch))
        self.waits_since = self._world.now

    def _given(self, message: Announce | BatchFailed | BatchEmpty) -> None:
        if isinstance(message, Announce):
            place = (message.arena, message.offset)
            release = Release(_SUB, message.slot, message.generation)
        else:
            place, release = None, Release(_SUB, NO_SLOT, message.batch)
        if message.iteration != self._iteration:
            self._say(release)
            return
        check = self._world.check
        check.that(message.epoch == self._epoch, message, "is of another epoch")
        check.that(message.batch == self._next, message, "where this batch is due:", self._next)
        self._next += 1
        contents = None if place is None else self._world.fleet.memory.get(place)
        check.batch(self._address(message), message, contents)
        self._inbox.append(View(release, place, contents))

    def _address(self, message: Announce | BatchFailed | BatchEmpty) -> BatchAddress:
        settings = self._settings
        return BatchAddress(settings.name, settings.seed, message.epoch, message.batch, *self._rank)

    def _work(self) -> None:
        """Takes the next batch if it is idle, or notes that it waits."""
        if self._is_working or self.is_gone or self.is_stopped or self.has_left:
            return
        if self._inbox:
            self.waits_since = None
            self._is_working = True
            self._take(self._inbox.popleft())
            self._world.later(self.script.pace_s, self._worked)
        elif self._batches >= 0 and self._next >= self._batches:
            self._next_epoch()
        elif self.waits_since is None:
            self.waits_since = self._world.now

    def _take(self, view: View) -> None:
        """As the client does: a view while one credit stays free of views, else a copy.

        Views it keeps stay kept when its credits are lowered.
        """
        self.delivered += 1
        if len(self._kept) >= self._credits - 1:
            self._say(view.release)
        else:
            self._kept.append(view)

    def _worked(self) -> None:
        self._is_working = False
        if self.is_gone or self.is_stopped or self.has_left:
            return
        while len(self._kept) > self.script.keep:
            self._say(self._kept.popleft().release)
        if self._draws.random() < self.script.madness:
            self._say(self._nonsense())
        if self._draws.random() < self.script.restlessness:
            self._epoch = self._draws.choice((self._epoch, self._epoch, 0, 5))
            self._start(self._draws.randint(0, len(self._truth_batches(self._epoch))))
        self._work()

    def _next_epoch(self) -> None:
        self._epochs_left -= 1
        self._batches = -1
        if self._epochs_left > 0:
            self._epoch += 1
            self._start(0)
            return
        if self._draws.random() < 0.5:
            self._leave()
            return
        self._say(Unsubscribe(_SUB))
        self.waits_since = self._world.now
        if self._draws.random() < 0.5:
            while self._kept:
                self._say(self._kept.popleft().release)

    def _leave(self) -> None:
        """As the client's close: nothing more is taken, views are released when they die."""
        self.has_left = True
        self.waits_since = None
        self._inbox.clear()
        self._say(Leave(tuple(view.release for view in self._kept)))
        self._world.later(self._draws.uniform(0, 1), self._last_view)

    def _last_view(self) -> None:
        if self.is_gone or self.is_stopped:
            return
        while self._kept:
            self._say(self._kept.popleft().release)
        self._world.later(self._draws.uniform(0, 1), self.crash)

    def _nonsense(self) -> Said:
        number = self._draws.choice((-1, 0, 3, 2**31, 2**63 - 1))
        return self._draws.choice(
            (
                Release(_SUB, 2**20, number),  # no slot has this number
                Release(number, NO_SLOT, 0),
                Start(number, 1, 0, 0),
                Start(_SUB, 0, number, -1),
                Unsubscribe(99),
                Subscribe(_SUB, self.script.stream, 0, 1, 2, 0),
                Subscribe(_MAD_SUB, "no such stream", number, number, number, number),
                Subscribe(_MAD_SUB, self.script.stream, number, number, -1, number),
            )
        )
