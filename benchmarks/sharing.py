"""Throughput of contenders, run by turns, and what part of one trainer's rate each of several gets."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.results import Spread
from benchmarks.trainers import Rate, Source, Window, rates

Runs = dict[str, list[list[Rate]]]


def by_turns(contenders: Mapping[str, tuple[list[Source], Window]], repetitions: int) -> Runs:
    """Every contender once, then all again: the rates of its trainers, by repetition."""
    runs: Runs = {name: [] for name in contenders}
    for repetition in range(repetitions):
        for name, (trainers, window) in contenders.items():
            runs[name].append(rates(trainers, window))
            each = ", ".join(f"{rate.rows_per_s:,.0f}" for rate in runs[name][-1])
            print(f"  {repetition + 1}/{repetitions} {name}: {each} samples/s", flush=True)
    return runs


def total(run: list[list[Rate]]) -> list[float]:
    """Samples a second of all trainers together, by repetition."""
    return [sum(rate.rows_per_s for rate in rates) for rates in run]


def slowest(run: list[list[Rate]]) -> list[float]:
    """Samples a second of the slowest trainer, by repetition."""
    return [min(rate.rows_per_s for rate in rates) for rates in run]


def gigabytes(run: list[list[Rate]]) -> Spread:
    """GB/s of the slowest trainer."""
    return Spread.of([min(rate.bytes_per_s for rate in rates) / 1e9 for rates in run])


def raw(runs: Runs) -> dict[str, list[list[float]]]:
    """Every trainer's samples a second, for results.json."""
    return {name: [[rate.rows_per_s for rate in rates] for rates in run]
            for name, run in runs.items()}  # fmt: skip
