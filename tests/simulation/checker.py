"""What must be true after every step, whatever happened. It looks at actions, memory and the core."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.fleet import Contents
from tests.simulation.truth import Reading

from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import (
    Announce,
    BatchEmpty,
    BatchFailed,
    EpochStarted,
    Granted,
    Leave,
    Refused,
    Release,
    Subscribed,
    Unsubscribed,
)
from loaderd_server.core.actions import Action, Assign, MakeArena, Tell
from loaderd_server.core.batchjob import BatchJob
from loaderd_server.core.events import LeaseEnded, TrainerSaid
from loaderd_server.core.lagging import Window
from loaderd_server.core.slots import SlotState
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.tasks import BatchTask, IterateTask

if TYPE_CHECKING:
    from tests.simulation.crowd import FakeTrainer
    from tests.simulation.world import Books, World

#: No live trainer waits longer for its next batch, error or refusal, in virtual seconds.
LONGEST_WAIT_S = 200.0


#: Where a slot in each state is: free list, idle list, lent, in a job.
_WHERE = {
    SlotState.FREE: (True, False, False, False),
    SlotState.FILLING: (False, False, False, True),
    SlotState.READY: (False, True, False, False),
    SlotState.HELD: (False, False, True, False),
    SlotState.KEPT: (False, True, False, False),
}


class Broken(AssertionError):
    """A rule does not hold; the text says which."""


class Checker:
    """Holds the core against the rules."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: (lease, sub) -> credits last told, announcements out.
        self._credits: dict[tuple[int, int], int] = {}
        self._out: Counter[tuple[int, int]] = Counter()
        self._stream_of: dict[int, str] = {}
        self._slots: Counter[str] = Counter()
        self._slot_bytes: dict[str, int] = {}
        self._ended: set[tuple[int, int]] = set()
        #: Who was put somewhere in this step.
        self._placed: set[int] = set()

    def that(self, holds: bool, *what: object) -> None:
        """Raises Broken unless it holds; puts ``what`` in words only then."""
        if not holds:
            raise Broken(" ".join(map(str, what)))

    # --- actions, as they come --------------------------------------------------------------

    def arena_made(self, action: MakeArena) -> None:
        """An arena exists: its slots count where they are of the common size."""
        common = self._slot_bytes.setdefault(action.stream, action.slot_bytes)
        if common == action.slot_bytes:
            self._slots[action.stream] += action.count

    def actions(self, actions: list[Action]) -> None:
        """Looks at each action before it is carried out."""
        self._placed = {
            action.lease
            for action in actions
            if isinstance(action, Tell) and isinstance(action.message, EpochStarted)
        }
        for action in actions:
            if isinstance(action, Tell):
                self._told(action)
            elif isinstance(action, Assign) and isinstance(action.task, BatchTask | IterateTask):
                self._place_is_nobodys(action.task)

    def _told(self, action: Tell) -> None:
        message, key = action.message, (action.lease, action.message.sub)
        self.that(key not in self._ended or isinstance(message, Refused), action, "after its end")
        if isinstance(message, (Subscribed, Granted)):
            self._credits[key] = message.credits
        elif isinstance(message, (Announce, BatchFailed, BatchEmpty)):
            self._out[key] += 1
            credits = self._credits.get(key, 0)
            self.that(self._out[key] <= credits, action, "beyond its credits", credits)
            if isinstance(message, Announce):
                self._window_is_kept(action.lease, message)
        elif isinstance(message, (Refused, Unsubscribed)):
            if message.sub == 7:
                self._ended.add(key)
            self._credits.pop(key, None)

    def heard(self, event: object) -> None:
        """Keeps count of what trainers give back."""
        if isinstance(event, LeaseEnded):
            for key in [key for key in self._out if key[0] == event.lease]:
                del self._out[key]
            for key in [key for key in self._credits if key[0] == event.lease]:
                del self._credits[key]

        if isinstance(event, TrainerSaid) and isinstance(event.message, Leave):
            self._left(event.lease, event.message)

    def released(self, lease: int, release: Release) -> None:
        """A release that the trainer had a right to."""
        self._out[lease, release.sub] -= 1

    def _left(self, lease: int, leave: Leave) -> None:
        """Only what it keeps is out any more, and it is told nothing."""
        for key in [key for key in self._out if key[0] == lease]:
            self._out[key] = sum(release.sub == key[1] for release in leave.kept)
        for key in [key for key in self._credits if key[0] == lease]:
            del self._credits[key]
            self._ended.add(key)

    def _place_is_nobodys(self, task: BatchTask | IterateTask) -> None:
        place = (task.place.arena, task.place.offset)
        for trainer in self._world.trainers:
            if not trainer.is_gone:
                held = any(view.place == place for view in trainer.views())
                self.that(not held, task, "is to be written where", trainer.lease, "has a view")
        for worker in self._world.fleet.workers.values():
            for other in worker.hands:
                if not isinstance(other, BatchTask | IterateTask):
                    continue
                same = (other.place.arena, other.place.offset)
                self.that(same != place, task, "is to be written where this is:", other)

    # --- batches ----------------------------------------------------------------------------

    def batch(
        self,
        reading: Reading,
        message: Announce | BatchFailed | BatchEmpty,
        contents: Contents | None,
    ) -> None:
        """A batch, its failure or its emptiness is what it must be."""
        address = reading.address(message.batch)
        is_iterable = self._world.truth.is_iterable(reading.stream)
        if is_iterable and isinstance(message, BatchFailed):
            # What no worker started for is lost, whether there would have been such a batch or not.
            right = message.failure.code is ErrorCode.TOO_LARGE and self._world.truth.is_large(
                address
            )
            self.that(right or self._world.workers_are_stillborn(), address, message)
            return
        expected = self._world.truth.expected(reading, message.batch)
        if isinstance(message, BatchFailed):
            failure = message.failure
            right = (failure.code, failure.index) in expected.failures
            right = right or failure.code in expected.codes or self._world.workers_are_stillborn()
            self.that(right, address, failure, "expected", expected)
            self.that(bool(failure.text), address, "failure without a text")
            return
        told = tuple((f.position, f.index) for f in message.failed)
        self.that(told == expected.failed, address, "failed:", told, "expected", expected)
        if isinstance(message, BatchEmpty):
            self.that(expected.rows == (), address, "is empty, expected", expected)
            return
        assert contents is not None
        self.that(contents.address == address, address, "announced where lies", contents)
        self.that(contents.rows == expected.rows, address, contents, "expected", expected)
        self.that(message.rows == len(contents.rows), address, message.rows, "rows announced")

    def refusal(self, trainer: FakeTrainer, message: Refused) -> None:
        """A trainer may be refused only where there is no room, or no stream."""
        stream = self._world.stream(trainer.script.stream)
        if message.code == ErrorCode.STREAM_ENDED:
            # An order cannot be made either where workers never start.
            right = stream.phase is Phase.CLOSED or self._world.workers_are_stillborn()
            self.that(right, f"{message}, but the stream is not closed")
            return
        self.that(message.code == ErrorCode.REFUSED, f"{message} to lease {trainer.lease}")
        if self._world.truth.is_iterable(trainer.script.stream):
            is_late = "cannot be had any more" in message.text
            self.that(is_late or "no room" in message.text, message, "to", trainer.lease)
            return
        self.that("no room" in message.text, f"{message} to a trainer that asked rightly")

    # --- the whole --------------------------------------------------------------------------

    def everything(self) -> None:
        """After each step."""
        self._views_are_unchanged()
        self._hands_are_bounded()
        self._world.fleet.depot.everything()
        books = self._world.books()
        for stream in self._world.streams():
            self._slots_are_accounted_for(stream, books)
            self._credits_are_accounted_for(stream, books)
            if stream.window is not None:
                self._patience_is_bounded(stream, stream.window)

    def _patience_is_bounded(self, stream: Stream, window: Window) -> None:
        """Nobody waits for a laggard for longer than the stream says."""
        for cursor in stream.cursors:
            if cursor.stalled_since is not None:
                waits_s = self._world.now - cursor.stalled_since
                self.that(waits_s < window.patience_s + 0.1, cursor.lease, "stalls", waits_s)

    def _window_is_kept(self, lease: int, told: Announce) -> None:
        """Nobody is told of a batch that is farther from the last of the window than its size."""
        cursor = self._world.core._leases[lease].cursors.get(told.sub)
        if cursor is None or cursor.epoch is None or cursor.epoch.line is not None:
            return
        window = cursor.sequence.stream.window
        if window is None:
            return
        lasts = [
            c.position
            for c in cursor.epoch.cursors
            if c is not cursor and not c.is_behind and c.lease not in self._placed
        ]
        within = min(lasts, default=told.batch) + window.size
        self.that(told.batch < within, told, "though the last is at", lasts, "window", window.size)

    def _views_are_unchanged(self) -> None:
        memory = self._world.fleet.memory
        for trainer in self._world.trainers:
            if trainer.is_gone or not trainer.is_attached:
                continue
            for view in trainer.views():
                if view.place is not None and memory[view.place] is not view.contents:
                    raise Broken(f"bytes changed under a view of trainer {trainer.lease}: {view}")
            since = trainer.waits_since
            if since is not None and not trainer.is_stopped:
                waited_s = self._world.now - since
                self.that(waited_s < LONGEST_WAIT_S, "trainer", trainer.lease, "waits", waited_s)

    def _hands_are_bounded(self) -> None:
        settings = self._world.scenario.settings.workers
        busy = 0
        for worker in self._world.fleet.workers.values():
            busy += bool(worker.hands)
            self.that(len(worker.hands) <= settings.depth, f"worker {worker.number}: too much")
        self.that(busy <= settings.count, f"{busy} workers are busy, over {settings.count}")

    def _slots_are_accounted_for(self, stream: Stream, books: Books) -> None:
        pool = stream.pool
        free = {slot.number for slots in pool._free.values() for slot in slots}
        for slot in pool.slots:
            number, state = slot.number, slot.state
            places = (
                number in free,
                number in pool.idle,
                number in books.loans,
                number in books.filling,
            )
            if places != _WHERE[state]:
                raise Broken(f"{slot._complaint('is ' + state.value)}: {places}")
            if state is SlotState.FREE:
                continue
            if slot.holds != books.loans.get(number, 0):
                raise Broken(f"slot {number}: {slot.holds} holds, {books.loans[number]} loans")
            entry = slot.epoch and slot.epoch.entries.get(slot.batch)
            if entry is not slot and stream.phase is not Phase.CLOSED:
                known = isinstance(entry, BatchJob) and entry.slot is slot
                if not known:
                    raise Broken(slot._complaint("holds a batch that nobody knows of"))

    def _credits_are_accounted_for(self, stream: Stream, books: Books) -> None:
        out = sum(c.outstanding for c in stream.ledger.admitted) + stream.ledger.orphans
        lent = books.lent[stream.name]
        self.that(out == lent, f"{stream.name}: {out} outstanding, {lent} lent")
        if not stream.is_open:
            return
        most = self._slots[stream.name] - self._world.scenario.settings.workers.count - 1
        used = stream.ledger.used()
        self.that(used <= most, f"{stream.name}: {used} credits, over {most}")

    def end(self) -> None:
        """When all trainers that can have gone: nothing is left behind."""
        for trainer in self._world.trainers:
            done = trainer.is_gone or self._world.can_never_end(trainer)
            self.that(done, f"trainer {trainer.lease} never came to its end")
        for trainer in self._world.trainers:
            trainer.crash()
        self._world.settle()
        for stream in self._world.streams():
            held = stream.slots_in(SlotState.HELD), stream.slots_in(SlotState.FILLING)
            self.that(held == (0, 0), f"{stream.name}: {held} slots held, filling at the end")
            self.that(not stream.cursors, f"{stream.name}: cursors left: {stream.cursors}")
            self.that(stream.ledger.used() == 0, f"{stream.name}: credits left")
