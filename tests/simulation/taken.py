"""What a fake trainer has of its epoch: what it would put into a state, and says when it comes back."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.fleet import Contents

from loaderd_protocol.messages import Announce, BatchEmpty, BatchFailed, Release, ShardState


@dataclass(frozen=True)
class View:
    """A batch in a trainer's hands, with what it saw there first."""

    release: Release
    place: tuple[int, int] | None
    contents: Contents | None
    batch: int
    #: Positions that were reported as failed.
    failed: tuple[int, ...]
    #: The iterable dataset's behind it.
    state: ShardState | None


class Taken:
    """Counts what was taken, never what only came in."""

    def __init__(self) -> None:
        #: The next batch to be taken: it goes on there after a restart.
        self.next = 0
        self.failed: set[int] = set()
        #: Of an iterable dataset, by shard.
        self.states: dict[int, ShardState] = {}
        #: Of a queue: batches taken in this iteration, and of how many it has said that they are done.
        self.batches: list[int] = []
        self.done = 0

    def begin(self, batch: int, *, goes_on: bool) -> None:
        """A new iteration; ``goes_on``: of the same epoch, where it was."""
        self.next = batch
        self.batches, self.done = [], 0
        if not goes_on:
            self.failed.clear()
            self.states.clear()

    def take(self, view: View) -> None:
        """A batch is given to the trainer."""
        self.next = view.batch + 1
        self.failed.update(view.failed)
        self.batches.append(view.batch)
        if view.state is not None:
            self.states[view.state.shard] = view.state


def view_of(
    message: Announce | BatchFailed | BatchEmpty,
    release: Release,
    contents: Contents | None,
    shards: int,
) -> View:
    """A batch that came in."""
    place = (message.arena, message.offset) if isinstance(message, Announce) else None
    failed = () if isinstance(message, BatchFailed) else message.failed
    state = None
    if isinstance(message, Announce) and message.state:
        state = ShardState(message.batch % shards, message.batch // shards + 1, message.state)
    positions = tuple(sample.position for sample in failed)
    return View(release, place, contents, message.batch, positions, state)
