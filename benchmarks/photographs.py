"""Photographs, decode-bound: one trainer beside a bare loop, and several that share.

Run alone: ``python -m benchmarks.photographs [--quick]``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import sharing, sources
from benchmarks.results import Section, Settings, Spread, Target, ratio
from benchmarks.trainers import Bare, Shared, Source, Stock, Window
from examples.quickstart.serving import serving

TRANSFORM = "[{random_resized_crop: {size: 224}}, {horizontal_flip: {}}]"
_NOTE = (
    f"JPEG 500x375, random resized crop 224, flip, uint8, batches of {sources.BATCH}; "
    f"{sources.WORKERS} workers (each stock DataLoader has its own). The same decoder, crop and "
    f"flip everywhere. Several trainers: the slowest of each repetition. Trainers take batches "
    f"and do not read them."
)
_BARE = "bare loop in two processes, together"
_SINGLE = "loaderd, 1 trainer"
_SHARERS = (2, 4)


def measure(settings: Settings) -> Section:
    """Runs all contenders by turns."""
    root = str(sources.photographs(settings.photographs_per_class))
    window = Window(settings.warm_s, settings.window_s)
    with tempfile.TemporaryDirectory(prefix="loaderd-bench-") as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(sources.config("Photographs", {"root": root}, transform=TRANSFORM))
        with serving(config, Path(folder) / "run") as daemon:
            contenders = _contenders(root, daemon.run_dir)
            runs = sharing.by_turns(
                {name: (trainers, window) for name, trainers in contenders.items()},
                settings.repetitions,
            )
    return _section(runs)


def _contenders(root: str, address: Path) -> dict[str, list[Source]]:
    stock, shared = Stock("Transformed", (root,)), Shared(address)
    contenders: dict[str, list[Source]] = {
        _BARE: [Bare(root, start) for start in range(sources.WORKERS)],
        "stock DataLoader, 1 trainer": [stock],
        _SINGLE: [shared],
    }
    for count in _SHARERS:
        contenders[f"stock DataLoader, {count} trainers, each"] = [stock] * count
        contenders[f"loaderd, {count} trainers, each"] = [shared] * count
    return contenders


def _section(runs: sharing.Runs) -> Section:
    bare, single = sharing.total(runs[_BARE]), sharing.slowest(runs[_SINGLE])
    rows = []
    for name, run in runs.items():
        values = bare if name == _BARE else sharing.slowest(run)
        rows.append(
            (name, Spread.of(values).text(0), ratio(values, bare).text(),
             "" if name == _BARE else ratio(values, single).text())
        )  # fmt: skip
    targets = [Target("one trainer beside the bare loop", 0.93, ratio(single, bare))]
    for count in _SHARERS:
        each = sharing.slowest(runs[f"loaderd, {count} trainers, each"])
        targets.append(
            Target(f"each of {count} trainers beside a single one", 0.9, ratio(each, single))
        )
    return Section(
        "Photographs (decode-bound)",
        ("contender", "images/s", "of the bare loop", "of loaderd with 1 trainer"),
        tuple(rows),
        (_NOTE,),
        tuple(targets),
        sharing.raw(runs),
    )


if __name__ == "__main__":
    from benchmarks.run import main

    main(["photographs"])
