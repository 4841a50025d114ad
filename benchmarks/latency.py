"""From an announcement's send to ``next()`` returning, beside a bare ZeroMQ message.

Run alone: ``python -m benchmarks.latency [--quick]``. Method: docs/benchmarks.md.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import zmq
from benchmarks import sources
from benchmarks.processes import Meeting, together
from benchmarks.results import Section, Settings, Spread, ratio
from examples.quickstart.serving import serving

import loaderd

Stamps = dict[tuple[int, int], int]
#: Messages that do not count: caches and branch predictors get warm.
_WARM = 100
_TIMEOUT_MS = 60_000
#: Bytes of the bare message: as many as an announcement of such a batch has.
_TYPICAL_BYTES = 41
_PACE_MS = f"{sources.Paced.PERIOD_S * 1e3:.0f}"


def measure(settings: Settings) -> Section:
    """Runs both by turns, one trainer each time."""
    with tempfile.TemporaryDirectory(prefix="loaderd-bench-") as name:
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text(sources.config("Paced", batch_size=1, workers=1))
        stamps = folder / "stamps.json"
        returned: list[Stamps] = []
        bare: list[list[float]] = []
        serve = ("benchmarks.stamped_serve", str(stamps))
        with serving(config, folder / "run", serve) as daemon:
            for epoch in range(settings.repetitions):
                job = partial(_trainer, daemon.run_dir, epoch, settings.messages)
                returned += together([job])
                bare.append(_bare(folder / f"bare-{epoch}.sock", settings.messages))
                print(f"  {epoch + 1}/{settings.repetitions} bare and loaderd", flush=True)
        sent, size = _sent(stamps)
    announced = [
        [(at - sent[key]) / 1e3 for key, at in run.items() if key[1] >= _WARM] for run in returned
    ]
    return _section({"bare ZeroMQ ipc message": bare, "announce to next()": announced}, size)


def _sent(stamps: Path) -> tuple[Stamps, int]:
    rows = json.loads(stamps.read_text())
    sent = {(epoch, batch): at for epoch, batch, at, _ in rows}
    return sent, round(statistics.median(size for *_, size in rows))


def _trainer(address: Path, epoch: int, messages: int, _meeting: Meeting) -> Stamps:
    returned: Stamps = {}
    with loaderd.connect("train", address=address, timeout_s=60) as loader:
        loader.set_epoch(epoch)
        batches = iter(loader)
        for batch in range(messages + _WARM):
            rows = next(batches)
            returned[epoch, batch] = time.monotonic_ns()
            del rows
    return returned


def _bare(path: Path, messages: int) -> list[float]:
    """One way, in us, by two processes: ROUTER sends at the trainer's pace, DEALER receives."""
    job = partial(_receive, f"ipc://{path}", messages + _WARM)
    sender = partial(_send, f"ipc://{path}", messages + _WARM)
    received, sent = together([job, sender])
    return [(there - here) / 1e3 for there, here in zip(received, sent, strict=True)][_WARM:]


def _send(endpoint: str, messages: int, _meeting: Meeting) -> list[int]:
    sent = []
    payload = bytes(_TYPICAL_BYTES)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        if not router.poll(_TIMEOUT_MS):
            raise TimeoutError("the receiver did not say hello")
        identity, _ = router.recv_multipart()
        for _ in range(messages):
            time.sleep(sources.Paced.PERIOD_S)
            sent.append(time.monotonic_ns())
            router.send_multipart([identity, payload])
        # The receiver's goodbye: closing before it would drop what is under way.
        if not router.poll(_TIMEOUT_MS):
            raise TimeoutError("the receiver did not say goodbye")
    return sent


def _receive(endpoint: str, messages: int, _meeting: Meeting) -> list[int]:
    received = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.rcvtimeo = _TIMEOUT_MS
        dealer.connect(endpoint)
        dealer.send(b"hello")
        for _ in range(messages):
            dealer.recv()
            received.append(time.monotonic_ns())
        dealer.send(b"goodbye")
    return received


def _section(runs: dict[str, list[list[float]]], size: int) -> Section:
    bare, announced = runs.values()
    medians = {name: [statistics.median(run) for run in way] for name, way in runs.items()}
    tails = {name: [_percentile(run, 0.99) for run in way] for name, way in runs.items()}
    rows = tuple(
        (name, Spread.of(medians[name]).text(0), Spread.of(tails[name]).text(0)) for name in runs
    )
    first, second = medians.values()
    note = (
        f"One trainer that always waits: a sample is made every {_PACE_MS} ms by one worker. "
        f"An announcement has {size} bytes here, the bare message {_TYPICAL_BYTES}. "
        f"{len(announced[0])} messages a repetition. Median beside the bare message: "
        f"{ratio(second, first).text()}."
    )
    assert len(bare[0]) == len(announced[0])
    return Section(
        "Announce to next() returning",
        ("one way", "median, us", "99th percentile, us"),
        rows,
        (note,),
        raw={name: [medians[name], tails[name]] for name in runs},
    )


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    from benchmarks.run import main

    main(["latency"])
