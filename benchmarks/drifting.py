"""What trainers cost each other that stop, lag, or lose their daemon.

Run alone: ``python -m benchmarks.drifting [--quick]``. Method: docs/benchmarks.md.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import photographs, sharing, sources
from benchmarks.processes import Meeting, together
from benchmarks.results import Section, Settings, Spread, Target, ratio
from benchmarks.trainers import Shared, Source, Window
from examples.quickstart.serving import DaemonFailed, serving

import loaderd

_ROWS = 16
_BATCHES_APART = 200
_GOES_ON_S = 60.0
_NOTE = (
    f"The rate: photographs as in that benchmark; the others: float32 rows of 3x224x224 from memory, "
    f"batches of {_ROWS}; {sources.WORKERS} workers, lag: follow. Paused: a trainer of the same stream "
    f"stopped by SIGSTOP with its credits in hand. Gap: the "
    f"longest time between two batches of a trainer while another is stopped, beyond the longest "
    f"while none is. Made again: a second trainer begins when the first has had {_BATCHES_APART} "
    f"batches, of which few are kept. Reconnect: from the new daemon's line `ready` to the next batch."
)


def measure(settings: Settings) -> Section:
    """Runs all by turns."""
    with tempfile.TemporaryDirectory(prefix="loaderd-bench-") as name:
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text(sources.config("Floats", batch_size=_ROWS) + "    slots: 12\n")
        rates = _rates(folder, settings)
        with serving(config, folder / "run") as daemon:
            gaps = [_gap(daemon.run_dir, settings) for _ in range(settings.repetitions)]
            again = [_made_again(daemon.run_dir, n) for n in range(settings.repetitions)]
        back = [_reconnect(config, folder / "restarted") for _ in range(settings.repetitions)]
    return _section(rates, gaps, again, back)


@contextmanager
def _other(address: Path, *, paces_s: float = 0.0) -> Iterator[int]:
    """A trainer in a process of its own that reads on and on; its pid once it has a few batches."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_read_on, args=(address, paces_s, theirs))
    process.start()
    try:
        assert ours.poll(_GOES_ON_S)
        ours.recv()
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


def _read_on(address: Path, paces_s: float, pipe: multiprocessing.connection.Connection) -> None:
    with loaderd.connect("train", address=address, timeout_s=60) as loader:
        for number, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
            del batch
            if number == 3:
                pipe.send("reads")
            time.sleep(paces_s)


def _rates(folder: Path, settings: Settings) -> dict[str, list[float]]:
    """Rows a second of a trainer: alone, and while another is stopped.

    Of photographs: copy-bound batches come faster while another is stopped, as all but a few slots
    are then kept for that one, and those few stay in the processor's cache.
    """
    root = sources.photographs(settings.photographs_per_class)
    config = folder / "photographs.yaml"
    config.write_text(
        sources.config("Photographs", {"root": str(root)}, transform=photographs.TRANSFORM)
    )
    rates: dict[str, list[float]] = {"alone": [], "another paused": []}
    with serving(config, folder / "photographs") as daemon:
        for repetition in range(settings.repetitions):
            # Each is as often the first of the two: a machine gets faster, or slower, meanwhile.
            for name in list(rates)[:: -1 if repetition % 2 else 1]:
                rates[name] += _rate(daemon.run_dir, name, settings)
    return rates


def _rate(address: Path, name: str, settings: Settings) -> list[float]:
    trainers: list[Source] = [Shared(address)]
    job = {name: (trainers, Window(settings.warm_s, settings.window_s))}
    if name == "alone":
        return sharing.slowest(sharing.by_turns(job, 1)[name])
    with _other(address) as pid:
        os.kill(pid, signal.SIGSTOP)
        return sharing.slowest(sharing.by_turns(job, 1)[name])


def _gap(address: Path, settings: Settings) -> float:
    """How much longer, in ms, the longest gap between batches is while another is stopped."""
    stop_s = 13.0 if settings.repetitions > 1 else 1.0
    job = partial(_longest_gap, address, stop_s)
    with _other(address, paces_s=0.005) as pid:
        calm = together([job])[0]
        os.kill(pid, signal.SIGSTOP)
        stopped = together([job])[0]
    return (float(stopped) - float(calm)) * 1e3


def _longest_gap(address: Path, seconds: float, _meeting: Meeting) -> float:
    """Takes batches at a trainer's pace, so that no gap is the daemon's lack of workers."""
    longest = 0.0
    with loaderd.connect("train", address=address, timeout_s=60) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            next(batches)
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.02)
    return longest


def _made_again(address: Path, epoch: int) -> tuple[float, float]:
    """Milliseconds a batch: of the first trainer of an epoch, and of one that comes long after it."""
    first, again, remade = together([partial(_two_passes, address, 100 + epoch)])[0]
    assert remade > _BATCHES_APART // 2, f"only {remade} batches were made again"
    return first, again


def _two_passes(address: Path, epoch: int, _meeting: Meeting) -> tuple[float, float, int]:
    times = []
    remade = 0
    for _ in range(2):
        with loaderd.connect("train", address=address, timeout_s=60, start=(epoch, 0)) as loader:
            batches = iter(loader)
            next(batches)
            began = time.monotonic()
            for _ in range(_BATCHES_APART):
                next(batches)
            times.append((time.monotonic() - began) * 1e3 / _BATCHES_APART)
            remade = loader.stats().remade
    return times[0], times[1], remade


def _reconnect(config: Path, run_dir: Path) -> float:
    """Milliseconds from the new daemon's ``ready`` to the trainer's next batch."""
    came: list[float] = []
    ready: list[float] = []
    with (
        contextlib.suppress(DaemonFailed),  # the daemon that is killed did not stop as it should
        serving(config, run_dir) as daemon,
        loaderd.connect("train", address=run_dir, reconnect_s=_GOES_ON_S) as loader,
    ):
        trainer = threading.Thread(target=_until_back, args=(loader, came))
        trainer.start()
        while len(came) < 5:
            time.sleep(0.01)
        daemon.process.kill()
        daemon.process.wait()
        with serving(config, run_dir):
            ready.append(time.monotonic())
            trainer.join(_GOES_ON_S)
    return max(0.0, (came[-1] - ready[0]) * 1e3)


def _until_back(loader: loaderd.Loader, came: list[float]) -> None:
    for batch in loader:
        came.append(time.monotonic())
        del batch
        if loader.stats().reconnects:
            return


def _section(
    rates: dict[str, list[float]],
    gaps: list[float],
    again: list[tuple[float, float]],
    back: list[float],
) -> Section:
    paused = ratio(rates["another paused"], rates["alone"])
    first, second = [a for a, _ in again], [b for _, b in again]
    cheaper = ratio(first, second)
    rows = (
        ("rate while another is paused, of the rate alone", paused.text()),
        ("gap beyond the usual while another is stopped; ms", Spread.of(gaps).text(1)),
        ("a batch made again; ms", Spread.of(second).text(2)),
        ("a batch made first; ms", Spread.of(first).text(2)),
        ("reconnect, beyond the daemon's own start; ms", Spread.of(back).text(1)),
    )
    return Section(
        "Trainers that drift apart",
        ("what", "measured"),
        rows,
        (_NOTE,),
        (
            Target("the rate while another is paused, of the rate alone,", 0.97, paused),
            Target("50 ms over the gap while another is stopped", 1.0, _over(50.0, gaps)),
            Target("200 ms over the reconnect", 1.0, _over(200.0, back)),
            Target("a first batch's time over that of one made again", 1.0, cheaper),
        ),
        raw={"rates": [*rates.values()], "gaps": [gaps], "again": [first, second], "back": [back]},
    )


def _over(limit_ms: float, values: list[float]) -> Spread:
    """How many times each fits into the limit; what is below a millisecond counts as one."""
    return Spread.of([limit_ms / max(1.0, value) for value in values])


if __name__ == "__main__":
    from benchmarks.run import main

    main(["drifting"])
