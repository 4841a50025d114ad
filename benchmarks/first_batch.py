"""Attach to a warm daemon to first batch, beside a stock DataLoader's first batch.

Run alone: ``python -m benchmarks.first_batch [--quick]``.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import sources
from benchmarks.processes import Job, Meeting, together
from benchmarks.results import Section, Settings, Spread, Target, ratio
from examples.quickstart.serving import serving
from torch.utils.data import DataLoader

import loaderd

_NOTE = (
    f"From connect() (or DataLoader()) to the first batch in hand, in a fresh process that has its "
    f"imports done; {sources.WORKERS} workers, batches of {sources.BATCH} samples of 16 floats, so "
    f"that the batch itself costs nothing. The daemon has served one trainer before."
)
_WARM = "loaderd, warm daemon"
_MOST_S = 0.030


def measure(settings: Settings) -> Section:
    """Runs all by turns."""
    with tempfile.TemporaryDirectory(prefix="loaderd-bench-") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(sources.config("Tiny"))
        with serving(config, Path(folder) / "run") as daemon:
            contenders: dict[str, Job] = {
                _WARM: partial(_attach, daemon.run_dir),
                "stock DataLoader, fork": partial(_stock, "fork"),
                "stock DataLoader, spawn": partial(_stock, "spawn"),
            }
            together([contenders[_WARM]])
            times: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(settings.attaches):
                for name, job in contenders.items():
                    times[name] += together([job])
    return _section(times)


def _attach(address: Path, _meeting: Meeting) -> float:
    began = time.monotonic()
    with loaderd.connect("train", address=address, timeout_s=60) as loader:
        batch = next(iter(loader))
        took = time.monotonic() - began
        assert len(batch) == sources.BATCH
        return took


def _stock(method: str, _meeting: Meeting) -> float:
    dataset: Any = sources.Tiny()
    began = time.monotonic()
    loader: DataLoader[Any] = DataLoader(
        dataset, sources.BATCH, shuffle=True, num_workers=sources.WORKERS,
        multiprocessing_context=method,
    )  # fmt: skip
    batches = iter(loader)
    batch = next(batches)
    took = time.monotonic() - began
    assert len(batch) == sources.BATCH
    # To its end: workers of an abandoned iterator now and then abort as they are shut down.
    for batch in batches:
        del batch
    return took


def _section(times: dict[str, list[float]]) -> Section:
    warm = times[_WARM]
    rows = tuple(
        (name, Spread.of([value * 1e3 for value in values]).text(1), ratio(values, warm).text(1))
        for name, values in times.items()
    )
    within = Spread.of([_MOST_S / value for value in warm])
    return Section(
        "First batch",
        ("contender", "ms", "of the warm daemon's"),
        rows,
        (_NOTE,),
        (Target("30 ms over the first batch from a warm daemon", 1.0, within),),
        raw={name: [values] for name, values in times.items()},
    )


if __name__ == "__main__":
    from benchmarks.run import main

    main(["first_batch"])
