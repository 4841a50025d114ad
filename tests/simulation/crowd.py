"""Fake trainers: they behave as the client does, and as processes do that stop, crash or go mad."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.nonsense import MAD_SUB, SUB, Said, nonsense
from tests.simulation.scenario import TrainerScript
from tests.simulation.taken import Taken, View, view_of
from tests.simulation.truth import Reading, reading_of

from loaderd_protocol.messages import (
    NO_SLOT,
    Announce,
    BatchEmpty,
    BatchFailed,
    Done,
    EpochEnded,
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
    Where,
)
from loaderd_server.core.actions import Outgoing
from loaderd_server.core.events import LeaseBegan, LeaseEnded, TrainerSaid
from loaderd_server.core.settings import Mode

if TYPE_CHECKING:
    from tests.simulation.world import World


class FakeTrainer:
    """One trainer with one subscription at a time."""

    def __init__(self, world: World, lease: int, script: TrainerScript) -> None:
        self._world = world
        self._draws = world.draws
        self.lease = lease
        self.script = script
        self._settings = world.truth.streams[script.stream]
        self.is_queue = self._settings.mode is Mode.QUEUE
        self._is_iterable = world.truth.is_iterable(script.stream)
        self._epoch = script.epoch
        self._dealt = script.dealt
        self._epochs_left = script.epochs
        self._iteration = 0
        self._credits = 0
        #: The batch before which its epoch ends; None before EpochStarted, and in a queue.
        self._end: int | None = None
        self._is_over = False
        #: The next batch to come.
        self._next = 0
        self._taken = Taken()
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
        self._has_begun = False
        self._is_live = False
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
                SUB, script.stream, script.rank, script.world_size, script.prefetch, self._epoch,
                script.seed, script.batch_size, script.drop_last,
            )
        )  # fmt: skip
        if script.is_hasty:
            self._begin()
        self.waits_since = self._world.now

    def crash(self) -> None:
        """SIGKILL; what it has said may arrive after the news of its death."""
        if self.is_gone or not self.is_attached:
            self.is_gone = True
            return
        self.is_gone = True
        self.waits_since = None
        self._world.tell_core(LeaseEnded(self.lease))

    def lose_daemon(self, lease: int) -> None:
        """The daemon was killed: what was prefetched is lost, and it comes back by another lease."""
        if self.is_gone or not self.is_attached:
            return
        if self.has_left or not self.script.reconnects:
            self.is_gone = True
            self.waits_since = None
            return
        self._world.renamed(self, lease)
        self.lease = lease
        self.is_attached = False
        self._inbox.clear()
        self._kept.clear()
        self._mail.clear()
        self._last_said = {True: 0.0, False: 0.0}
        self._iteration = 0
        self._is_working = False
        self.waits_since = None
        self._world.later(self._draws.uniform(0, 1), self._attach_again, lease)

    def _attach_again(self, lease: int) -> None:
        if self.is_stopped and math.isfinite(self.script.stop_s):
            self._world.later(1.0, self._attach_again, lease)
        elif lease == self.lease and not self.is_stopped:
            self.attach()

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

    @property
    def is_stopped_for_ever(self) -> bool:
        """Nobody will send it SIGCONT."""
        return self.is_stopped and not math.isfinite(self.script.stop_s)

    def views(self) -> list[View]:
        """All it may look at."""
        return [*self._inbox, *self._kept]

    # --- talking ----------------------------------------------------------------------------

    def _say(self, message: Said) -> None:
        """Releases go by the lease socket, the rest by ZeroMQ: each keeps its own order."""
        is_release = isinstance(message, Release | Leave | Done)
        at = max(self._last_said[is_release], self._world.now + self._draws.uniform(0, 0.002))
        self._last_said[is_release] = at
        self._world.at(at, self._world.trainer_said, TrainerSaid(self.lease, message))

    def hear(self, message: Outgoing) -> None:
        """A message comes in, after those before it."""
        at = max(self._last_heard, self._world.now + self._draws.uniform(0, 0.002))
        self._last_heard = at
        self._world.at(at, self._heard, self.lease, message)

    def _heard(self, lease: int, message: Outgoing) -> None:
        if self.is_gone or self.has_left or lease != self.lease:
            return
        if self.is_stopped:
            self._mail.append(message)
            return
        self._read(message)
        self._work()

    def _read(self, message: Outgoing) -> None:
        check = self._world.check
        if isinstance(message, Refused) and message.sub == MAD_SUB:
            return
        check.that(message.sub == SUB, message, "for a sub that is not there")
        if isinstance(message, Subscribed):
            check.that(message.credits >= 1, message, "without a credit")
            batches = self._truth_end(replace(self._reading(), dealt=()))
            batches = -1 if self._is_iterable else batches
            is_old = message.batches == batches or self.script.is_hasty
            check.that(is_old, message, "but there are", batches)
            self._credits = message.credits
            if not self.script.is_hasty:
                self._begin()
        elif isinstance(message, Granted):
            self._credits = message.credits
        elif isinstance(message, EpochStarted):
            if message.iteration == self._iteration:
                self._started(message)
        elif isinstance(message, EpochEnded):
            if message.iteration == self._iteration:
                self._ended()
        elif isinstance(message, (Refused, Unsubscribed)):
            self._bye(message)
        else:
            self._given(message)

    def _bye(self, message: Refused | Unsubscribed) -> None:
        if isinstance(message, Refused):
            self._world.check.refusal(self, message)
        self.crash()

    # --- batches ----------------------------------------------------------------------------

    def _reading(self) -> Reading:
        script = self.script
        return reading_of(
            self._settings, seed=script.seed, epoch=self._epoch, rank=script.rank,
            world_size=script.world_size, dealt=self._dealt,
        )  # fmt: skip

    def _truth_end(self, reading: Reading) -> int:
        script = self.script
        drop_last = self._settings.drop_last if script.drop_last < 0 else bool(script.drop_last)
        return self._world.truth.end(reading, script.batch_size, drop_last)

    def _begin(self) -> None:
        """Where it is to begin, or where it was when the daemon died."""
        if self._has_begun:
            self._start(self._taken.next, goes_on=True)
        else:
            first = int(self.script.batch_share * self._truth_end(self._reading()))
            self._start(first, Where.LIVE if self.script.joins_live else Where.EXACT)

    def _start(self, batch: int, where: Where = Where.EXACT, *, goes_on: bool = False) -> None:
        if where is Where.LIVE:
            self._dealt = ()
        self._has_begun = where is Where.EXACT
        self._is_live = where is Where.LIVE
        self._iteration += 1
        self._next = batch
        self._end = None
        self._is_over = False
        while self._inbox:
            self._say(self._inbox.popleft().release)
        count = len(self._taken.batches)
        self._taken.begin(batch, goes_on=goes_on)
        done = self._done_ranges() if goes_on and self.is_queue else ()
        failed = tuple(sorted(self._taken.failed))
        states = tuple(self._taken.states.values())
        self._say(
            Start(
                SUB, self._iteration, self._epoch, batch, where, self._dealt, failed, done, count,
                states,
            )
        )  # fmt: skip
        self.waits_since = self._world.now

    def _done_ranges(self) -> tuple[int, ...]:
        """All batches of this epoch of the queue that it has taken, as pairs."""
        mine = self._world.queues.taken_by(self, self._reading())
        return tuple(bound for batch in sorted(mine) for bound in (batch, batch + 1))

    def _started(self, message: EpochStarted) -> None:
        check = self._world.check
        if self._is_live:
            self._epoch, self._is_live, self._has_begun = message.epoch, False, True
            self._next = self._taken.next = message.batch
        check.that(message.epoch == self._epoch, message, "is another epoch than", self._epoch)
        check.that(message.batch == self._taken.next, message, "not at", self._taken.next)
        self._end = self._truth_end(self._reading())
        told = -1 if self.is_queue or self._is_iterable else self._end
        check.that(message.batches == told, message, "but there are", told)

    def _ended(self) -> None:
        self._is_over = True
        if self._is_iterable:
            self._skip_holes(self._truth_end(self._reading()))
            check, end = self._world.check, self._end
            check.that(self._next >= (end or 0), "told of the end at", self._next, "of", end)
        else:
            self._world.queues.ended(self._reading())

    def _skip_holes(self, batch: int) -> None:
        """Numbers of shards that have ended are passed over."""
        batches = self._world.truth.batches(self._reading())
        while self._next < min(batch, len(batches)) and not batches[self._next]:
            self._next += 1

    def _given(self, message: Announce | BatchFailed | BatchEmpty) -> None:
        if isinstance(message, Announce):
            place = (message.arena, message.offset)
            release = Release(SUB, message.slot, message.generation)
        else:
            place, release = None, Release(SUB, NO_SLOT, message.batch)
        if message.iteration != self._iteration:
            self._say(release)
            return
        check = self._world.check
        check.that(message.epoch == self._epoch, message, "is of another epoch")
        if self._is_iterable:
            self._skip_holes(message.batch)
            if isinstance(message, BatchFailed):
                self._next = message.batch
        if not self.is_queue:
            check.that(message.batch == self._next, message, "where this batch is due:", self._next)
        self._next += 1
        contents = None if place is None else self._world.fleet.memory.get(place)
        check.batch(self._reading(), message, contents)
        self._inbox.append(view_of(message, release, contents, self._settings.shards))

    def _work(self) -> None:
        """Takes the next batch if it is idle, or notes that it waits."""
        if self._is_working or self.is_gone or self.is_stopped or self.has_left:
            return
        if not self.is_attached:
            return
        taken = self._taken
        if self.is_queue and self.is_attached and len(taken.batches) > taken.done:
            taken.done = len(taken.batches)
            self._say(Done(SUB, self._iteration, taken.done))
        if self._inbox:
            self.waits_since = None
            self._is_working = True
            self._take(self._inbox.popleft())
            self._world.later(self.script.pace_s, self._worked, self.lease)
        elif self._is_at_end():
            self._next_epoch()
        elif self.waits_since is None:
            self.waits_since = self._world.now

    def _is_at_end(self) -> bool:
        if self.is_queue or self._is_iterable:
            return self._is_over
        return self._end is not None and self._next >= self._end

    def _take(self, view: View) -> None:
        """As the client does: a view while one credit stays free of views, else a copy.

        Views it keeps stay kept when its credits are lowered.
        """
        self.delivered += 1
        self._taken.take(view)
        if self.is_queue:
            self._world.queues.took(self, self._reading(), view.batch)
        if len(self._kept) >= self._credits - 1:
            self._say(view.release)
        else:
            self._kept.append(view)

    def _worked(self, lease: int) -> None:
        if lease != self.lease:
            return  # its daemon was killed meanwhile: it begins anew where it was
        self._is_working = False
        if self.is_gone or self.is_stopped or self.has_left or not self.is_attached:
            return
        while len(self._kept) > self.script.keep:
            self._say(self._kept.popleft().release)
        if self._draws.random() < self.script.madness:
            self._say(nonsense(self._draws, self.script.stream, self._iteration))
        if self._draws.random() < self.script.restlessness:
            self._epoch = self._draws.choice((self._epoch, self._epoch, 0, 5))
            where = self._draws.choice((Where.EXACT, Where.EXACT, Where.LIVE))
            self._start(self._draws.randint(0, self._truth_end(self._reading())), where)
        self._work()

    def _next_epoch(self) -> None:
        self._epochs_left -= 1
        self._end, self._is_over = None, False
        self._dealt = ()
        if self._epochs_left > 0:
            self._epoch += 1
            self._start(0)
            return
        if self._draws.random() < 0.5:
            self._leave()
            return
        self._say(Unsubscribe(SUB))
        self.waits_since = self._world.now
        if self._draws.random() < 0.5:
            while self._kept:
                self._say(self._kept.popleft().release)

    def _leave(self) -> None:
        """As the client's close: nothing more is taken, views are released when they die."""
        self.has_left = True
        self.waits_since = None
        self._inbox.clear()
        done = (Done(SUB, self._iteration, len(self._taken.batches)),) if self.is_queue else ()
        self._say(Leave(tuple(view.release for view in self._kept), done))
        self._world.later(self._draws.uniform(0, 1), self._last_view)

    def _last_view(self) -> None:
        if self.is_gone or self.is_stopped:
            return
        while self._kept:
            self._say(self._kept.popleft().release)
        self._world.later(self._draws.uniform(0, 1), self.crash)
