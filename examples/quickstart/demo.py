"""The main job from nothing: photographs, a daemon, two trainers on one stream, and what it saved.

Run: ``python -m examples.quickstart.demo`` (or ``make demo``) in the repository's folder.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from examples.quickstart.make_photos import make
from examples.quickstart.serving import Daemon, DaemonFailed, serving
from examples.quickstart.trainer import Progress, Report, run
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

ROOT = Path(__file__).parents[2]
CONFIG = Path("configs/quickstart.yaml")
PHOTOS = Path(".demo/photos")
#: Two experiments on the same batches: their learning rates.
LEARNING_RATES = (0.05, 0.01)
EPOCHS = 2
#: Longest silence of all trainers that is not taken for a fault.
SILENCE_S = 60.0


class TrainerFailed(RuntimeError):
    """A trainer ended without its report."""


def main() -> int:
    """Runs the demo; returns the exit code."""
    os.chdir(ROOT)
    console = Console()
    began = time.perf_counter()
    count = make(PHOTOS)
    console.print(f"{count} photographs in {PHOTOS} ({time.perf_counter() - began:.1f} s)")
    try:
        same = _serve_and_train(console)
    except (DaemonFailed, TrainerFailed) as error:
        console.print(f"[red]failed:[/red] {error}")
        return 1
    console.print(f"done in {time.perf_counter() - began:.1f} s; the daemon stopped cleanly")
    return 0 if same else 1


def _serve_and_train(console: Console) -> bool:
    folder = tempfile.TemporaryDirectory(prefix="loaderd-demo-")
    with folder, serving(CONFIG, Path(folder.name) / "run") as daemon:
        console.print(f"serving {CONFIG} at {daemon.run_dir} (pid {daemon.process.pid})")
        reports = _train(daemon, console)
        console.print(_trainers_table(reports))
        console.print(_daemon_table(daemon, reports))
    same = len({report.checksum for report in reports}) == 1
    checksums = ", ".join(f"{report.checksum:08x}" for report in reports)
    console.print(f"batches of all trainers {'identical' if same else 'DIFFER'}: {checksums}")
    return same


def _train(daemon: Daemon, console: Console) -> list[Report]:
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes: list[Connection] = []
        processes: list[BaseProcess] = []
        for number, rate in enumerate(LEARNING_RATES):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=run, args=(sender, daemon.run_dir, rate, EPOCHS), name=f"trainer {number}"
            )
            process.start()
            sender.close()
            stack.callback(_end, process)
            pipes.append(receiver)
            processes.append(process)
        return _watch(pipes, console)


def _watch(pipes: list[Connection], console: Console) -> list[Report]:
    """Shows the trainers' progress until each has sent its report."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("loss {task.fields[loss]:.3f}"), TimeElapsedColumn())  # fmt: skip
    reports: dict[Connection, Report] = {}
    with Bars(*columns, console=console) as bars:
        tasks = {
            pipe: bars.add_task(f"trainer {number} (lr {rate})", total=None, loss=float("nan"))
            for number, (pipe, rate) in enumerate(zip(pipes, LEARNING_RATES, strict=True))
        }
        while len(reports) < len(pipes):
            for pipe in _heard(pipes, reports):
                message = _receive(pipe, pipes.index(pipe))
                if isinstance(message, Report):
                    reports[pipe] = message
                else:
                    bars.update(
                        tasks[pipe], completed=message.done, total=message.of, loss=message.loss
                    )
    return [reports[pipe] for pipe in pipes]


def _heard(pipes: list[Connection], reports: dict[Connection, Report]) -> list[Connection]:
    waiting = [pipe for pipe in pipes if pipe not in reports]
    ready: list[Any] = wait(waiting, timeout=SILENCE_S)
    if not ready:
        raise TrainerFailed(f"no trainer said anything for {SILENCE_S:.0f} s")
    return ready


def _receive(pipe: Connection, number: int) -> Progress | Report:
    try:
        message: Progress | Report | str = pipe.recv()
    except EOFError:
        raise TrainerFailed(f"trainer {number} ended without a report") from None
    if isinstance(message, str):
        raise TrainerFailed(f"trainer {number}: {message}")
    return message


def _end(process: BaseProcess) -> None:
    process.join(5.0)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _trainers_table(reports: list[Report]) -> Table:
    table = Table(title=f"Trainers ({EPOCHS} epochs)")
    for heading in ("trainer", "samples", "samples/s", "waiting for data", "loss", "accuracy"):
        table.add_column(heading, justify="right")
    for number, report in enumerate(reports):
        table.add_row(
            str(number), f"{report.samples:,}", f"{report.samples_per_s:,.0f}",
            f"{report.wait_share:.1%}", f"{report.loss:.3f}", f"{report.accuracy:.1%}",
        )  # fmt: skip
    return table


def _daemon_table(daemon: Daemon, reports: list[Report]) -> Table:
    """Loaded against delivered, and what the daemon and its workers take of the memory."""
    stream = next(part for part in daemon.status()["streams"] if part["name"] == "train")
    loaded, delivered = stream["samples_loaded"], sum(report.samples for report in reports)
    pss, private = daemon.memory()
    table = Table("what", "value", title="Daemon", show_header=False)
    table.add_row("samples loaded", f"{loaded:,}")
    table.add_row("samples delivered", f"{delivered:,} ({delivered / loaded:.2f} x loaded)")
    table.add_row("batches made again", f"{stream['batches_remade']:,}")
    table.add_row("slots", f"{stream['arena_bytes'] / 2**20:,.0f} MiB shared")
    table.add_row("memory, all its processes", f"{pss / 2**20:,.0f} MiB (PSS), slots included")
    table.add_row("of which private", f"{private / 2**20:,.0f} MiB")
    return table


if __name__ == "__main__":
    sys.exit(main())
