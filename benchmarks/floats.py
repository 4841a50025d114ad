"""38.5 MB float32 batches from memory, copy-bound: beside stock DataLoader, and shared by two.

Run alone: ``python -m benchmarks.floats [--quick]``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import sharing, sources
from benchmarks.results import Section, Settings, Spread, Target, ratio
from benchmarks.trainers import Shared, Source, Stock, Window
from examples.quickstart.serving import serving

_NOTE = (
    f"{sources.BATCH}x3x224x224 float32 from memory, dataset[i] for each row; {sources.WORKERS} "
    f"workers. Not read: the trainer takes the batch and drops it. Every byte read: it sums the "
    f"batch (torch.sum, one thread) before it takes the next. The targets are of the first kind."
)
_WAYS = {False: "not read", True: "every byte read"}


def measure(settings: Settings) -> Section:
    """Runs all contenders by turns, once with trainers that read every byte."""
    with tempfile.TemporaryDirectory(prefix="loaderd-bench-") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(sources.config("Floats"))
        with serving(config, Path(folder) / "run") as daemon:
            shared, stock = Shared(daemon.run_dir), Stock("Floats")
            contenders: dict[str, tuple[list[Source], Window]] = {}
            for read, way in _WAYS.items():
                window = Window(settings.warm_s, settings.window_s, read)
                contenders[f"stock DataLoader, 1 trainer, {way}"] = ([stock], window)
                contenders[f"loaderd, 1 trainer, {way}"] = ([shared], window)
                contenders[f"loaderd, 2 trainers, each, {way}"] = ([shared, shared], window)
            runs = sharing.by_turns(contenders, settings.repetitions)
    return _section(runs)


def _section(runs: sharing.Runs) -> Section:
    rows = []
    for name, run in runs.items():
        way = name.rpartition(", ")[2]
        stock = sharing.slowest(runs[f"stock DataLoader, 1 trainer, {way}"])
        values = sharing.slowest(run)
        rows.append(
            (name, Spread.of([value / sources.BATCH for value in values]).text(0),
             sharing.gigabytes(run).text(), ratio(values, stock).text())
        )  # fmt: skip
    way = _WAYS[False]
    stock = sharing.slowest(runs[f"stock DataLoader, 1 trainer, {way}"])
    single = sharing.slowest(runs[f"loaderd, 1 trainer, {way}"])
    shared = sharing.slowest(runs[f"loaderd, 2 trainers, each, {way}"])
    return Section(
        "Float batches of 38.5 MB (copy-bound)",
        ("contender", "batches/s", "GB/s", "of stock DataLoader"),
        tuple(rows),
        (_NOTE,),
        (
            Target("one trainer beside stock DataLoader", 3.0, ratio(single, stock)),
            Target("each of 2 trainers beside a single one", 0.9, ratio(shared, single)),
        ),
        sharing.raw(runs),
    )


if __name__ == "__main__":
    from benchmarks.run import main

    main(["floats"])
