"""A thousand seeded schedules of joins, leaves, crashes, stops, delays and errors; every rule held."""

from __future__ import annotations

import pytest
from tests.simulation.world import run_seed

_SEEDS = 1000
_CHUNK = 50


@pytest.mark.parametrize("first", range(0, _SEEDS, _CHUNK))
def test_every_rule_holds_after_every_step(first: int) -> None:
    for seed in range(first, first + _CHUNK):
        run_seed(seed)


def test_a_seed_replays_exactly() -> None:
    for seed in (7, 73, 285):
        once, again = run_seed(seed), run_seed(seed)
        assert (once.steps, once.now) == (again.steps, again.now)
        assert repr(list(once.trace)) == repr(list(again.trace))


def test_schedules_are_worth_their_time() -> None:
    """Most seeds deliver batches to several trainers; else the rules would hold for nothing."""
    worlds = [run_seed(seed) for seed in range(200)]
    delivered = [sum(trainer.delivered for trainer in world.trainers) for world in worlds]
    assert sum(delivered) > 200 * 40
    assert sum(count > 0 for count in delivered) > 140
