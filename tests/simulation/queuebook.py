"""Who took which batch of each queue: the oracle for "each batch to exactly one trainer"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.truth import Reading

if TYPE_CHECKING:
    from tests.simulation.crowd import FakeTrainer
    from tests.simulation.world import World


class QueueBook:
    """Notes what trainers take, and complains of a batch taken twice or never."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken: dict[Reading, dict[int, FakeTrainer]] = {}

    def took(self, trainer: FakeTrainer, reading: Reading, batch: int) -> None:
        """A trainer works on a batch; nobody else may have, but for the dead."""
        taken = self._taken.setdefault(reading, {})
        before = taken.get(batch)
        taken[batch] = trainer
        if before is None or self._world.restarted:
            return
        redelivers = self._world.truth.streams[reading.stream].sharing.redeliver
        self._world.check.that(
            before.is_gone and redelivers,
            f"batch {batch} of {reading} was taken by {before.lease} and again by {trainer.lease}",
        )

    def taken_by(self, trainer: FakeTrainer, reading: Reading) -> set[int]:
        """What this trainer took."""
        return {b for b, who in self._taken.get(reading, {}).items() if who is trainer}

    def ended(self, reading: Reading) -> None:
        """A trainer was told that the epoch is over: then every batch was taken."""
        truth = self._world.truth
        settings = truth.streams[reading.stream]
        end = truth.end(reading, 0, settings.drop_last)
        missing = set(range(end)) - self._taken.get(reading, {}).keys()
        may_be_lost = self._world.restarted or (
            not settings.sharing.redeliver and any(t.is_gone for t in self._world.trainers)
        )
        self._world.check.that(
            not missing or may_be_lost, f"{reading} is over, but nobody took {sorted(missing)}"
        )
