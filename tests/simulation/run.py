"""``python -m tests.simulation.run --seeds N [--seed S]``: many seeds, or one again."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from tests.simulation.checker import Broken
from tests.simulation.world import run_seed, tail


def _try(seed: int) -> tuple[int, int, str]:
    try:
        return seed, run_seed(seed).steps, ""
    except Broken as error:
        return seed, 0, str(error)


def main() -> int:
    """Returns the exit code: 1 where a seed failed."""
    parser = argparse.ArgumentParser(description="simulate the core through seeded schedules")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="run this one alone, and show its last steps")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    if asked.seed is not None:
        return _one(asked.seed)
    began, steps, done = time.perf_counter(), 0, 0
    with multiprocessing.Pool(asked.processes) as pool:
        seeds = range(asked.first, asked.first + asked.seeds)
        for seed, taken, failure in pool.imap_unordered(_try, seeds, chunksize=20):
            if failure:
                pool.terminate()
                _say(failure)
                _say(f"seed {seed} failed; again: make simulate SEED={seed}")
                return 1
            steps, done = steps + taken, done + 1
            if done % 1000 == 0:
                _say(f"{done} seeds, {steps} steps, {time.perf_counter() - began:.0f} s")
    _say(f"{done} seeds, {steps} steps, {time.perf_counter() - began:.1f} s: every rule held")
    return 0


def _one(seed: int) -> int:
    try:
        world = run_seed(seed)
    except Broken as error:
        _say(str(error))
        return 1
    _say(tail(world))
    _say(f"seed {seed}: {world.steps} steps, {world.now:.1f} virtual seconds; every rule held")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
