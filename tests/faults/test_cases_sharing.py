"""Cases 6, 8 and 9 in every mode of sharing."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from tests.support.modes import (
    COUNTED,
    HEAD,
    ITERABLE,
    LAGGING,
    connect,
    eventually,
    held,
    order_of,
    rows_streams,
    settings_of,
    trainers,
)
from tests.support.serving import Daemon, serving, start
from tests.support.sharing import cut, order, read, take
from tests.support.trainers import trainer

import loaderd

KILLING = """
memory: 256MiB
datasets:
  once: {{target: "tests.support.{module}:{kind}", args: {{at: 5, once: "{once}"}}}}
  always: {{target: "tests.support.{module}:{kind}", args: {{at: 5}}}}
streams:
"""


def killing_streams(kinds: dict[str, tuple[str, str]]) -> str:
    """Small batches in order, so that the measured first one does not meet item 5."""
    return "".join(
        f"  {kind}-{mode}: {{dataset: {dataset}, batch_size: 4, sampler: sequential, "
        f"on_error: {policy}, {settings_of(mode)}}}\n"
        for kind, (dataset, policy) in kinds.items()
        for mode in LAGGING
    )


# --- case 8 ---------------------------------------------------------------------------------


def outcomes(loader: loaderd.Loader) -> list[list[int] | loaderd.LoaderdError]:
    """Each batch or error, to the end."""
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(next(iterator).tolist())
        except StopIteration:
            return found
        except loaderd.LoaderdError as error:
            found.append(error)


def in_order(found: list[list[int] | loaderd.LoaderdError]) -> list[list[int]]:
    """The batches: a queue gives what is made first."""
    return sorted(one for one in found if isinstance(one, list))


FOURS = [list(range(a, a + 4)) for a in range(0, 16, 4)]


def test_case_8_a_sample_that_kills_its_worker_is_retried_named_or_left_out_in_every_mode(
    tmp_path: Path,
) -> None:
    kinds = {"once": ("once", "raise"), "raise": ("always", "raise"), "skip": ("always", "skip")}
    once = tmp_path / "once"
    config = KILLING.format(module="case_datasets", kind="Killing", once=once) + killing_streams(
        kinds
    )
    with serving(config, tmp_path) as daemon:
        for mode in LAGGING:
            once.unlink(missing_ok=True)
            with connect(daemon, f"once-{mode}") as loader:
                assert in_order(outcomes(loader)) == FOURS, mode
            assert once.exists()
            with connect(daemon, f"raise-{mode}") as loader:
                found = outcomes(loader)
            (error,) = [one for one in found if isinstance(one, loaderd.WorkerDied)]
            assert in_order(found) == [FOURS[0], *FOURS[2:]], mode
            assert error.failure is not None
            assert error.failure.index == 5
            assert re.search(r"SIGKILL.*pid \d+", str(error), re.DOTALL)
            with connect(daemon, f"skip-{mode}") as loader:
                assert in_order(outcomes(loader)) == [FOURS[0], [4, 6, 7], *FOURS[2:]], mode


def test_case_8_an_iterator_that_dies_is_followed_by_another_or_the_error_names_how(
    tmp_path: Path,
) -> None:
    once = tmp_path / "once"
    config = KILLING.format(module="case_iterables", kind="KillingItems", once=once)
    config += "".join(
        f"  {name}: {{dataset: {name}, batch_size: 4}}\n" for name in ("once", "always")
    )
    with serving(config, tmp_path) as daemon:
        with connect(daemon, "once") as loader:
            assert outcomes(loader) == FOURS
        assert once.exists()
        with connect(daemon, "always") as loader:
            first, error, *rest = outcomes(loader)
            assert first == FOURS[0]
            assert isinstance(error, loaderd.WorkerDied)
            assert "SIGKILL" in str(error)
            assert not rest  # what a dead iterator would have given, nobody knows


# --- case 9 ---------------------------------------------------------------------------------

HOLDER = """
import json
loaders, batches = [], []
for stream, arguments in json.loads(sys.argv[2]).items():
    loaders.append(iter(loaderd.connect(stream, address=ADDRESS, **arguments)))
    batches.append([next(loaders[-1]) for _ in range(2)])
say("holds")
wait()
"""


def test_case_9_one_that_is_killed_while_it_holds_slots_disturbs_nobody_in_any_mode(
    tmp_path: Path,
) -> None:
    config = HEAD + "streams:\n" + rows_streams() + ITERABLE
    with serving(config, tmp_path) as daemon:
        one_is_killed_while_it_holds_slots(daemon)


def one_is_killed_while_it_holds_slots(daemon: Daemon) -> None:
    epoch = 900
    streams: dict[str, dict[str, Any]] = {m: {"start": [epoch, 0]} for m in LAGGING}
    streams |= {"plain": {"start": [epoch, 0]}, "resumable": {"start": [epoch, 0]}}
    wanted = {mode: order_of(mode, daemon, epoch) for mode in LAGGING if mode != "queue"}
    others = {name: connect(daemon, name, start=(epoch, 0)) for name in streams}
    reading = {name: iter(loader) for name, loader in others.items()}
    given = {mode: take(reading[mode], 1) for mode in LAGGING}
    numbers = {name: [next(reading[name]).tolist()] for name in ("plain", "resumable")}
    with trainer(HOLDER, daemon.run_dir, json.dumps(streams)) as victim:
        victim.expect("holds")
        assert trainers(daemon) == 2 * len(streams)
        victim.process.kill()
        assert eventually(lambda: trainers(daemon) == len(streams), 1)
    for name in ("plain", "resumable"):
        numbers[name] += [batch.tolist() for batch in reading[name]]
        assert numbers[name] == COUNTED
    for mode in LAGGING:
        given[mode] += read(reading[mode])
        if mode != "queue":
            assert given[mode] == wanted[mode]
    done = [batch for batch in cut(order(epoch)) if batch not in given["queue"]]
    assert len(done) == 1  # of its two, one was done: it had asked for the next
    for loader in others.values():
        loader.close()
    assert eventually(lambda: not any(held(daemon, name) for name in streams), 1)


QUEUE_HOLDER = """
loader = loaderd.connect("once", address=ADDRESS, prefetch=1)
iterator = iter(loader)
batches = [next(iterator) for _ in range(2)]
say(*(index for batch in batches for index in batch["index"].tolist()))
wait()
"""


def test_case_9_without_redeliver_what_a_killed_trainer_had_is_lost_and_the_epoch_ends(
    tmp_path: Path,
) -> None:
    config = HEAD + "streams:\n"
    config += "  once: {dataset: rows, batch_size: 8, seed: 11, mode: queue, redeliver: false}\n"
    with serving(config, tmp_path) as daemon:
        with trainer(QUEUE_HOLDER, daemon.run_dir) as victim:
            had = [int(index) for index in victim.line().split()]
            victim.process.kill()
            victim.end()
        with connect(daemon, "once") as loader:
            given = [index for batch in read(loader) for index in batch]
            assert len(had) == 16
            assert not set(had) & set(given)
            lost = len(order()) - len(had) - len(given)
            assert 0 <= lost <= 8 * 3  # what was on its way to the one that was killed
            assert sorted(i for b in read(loader) for i in b) == sorted(order(1))


# --- case 6 ---------------------------------------------------------------------------------


def test_case_6_killed_again_and_again_every_mode_goes_on_and_the_neighbour_is_untouched(
    tmp_path: Path,
) -> None:
    config = HEAD + "streams:\n" + rows_streams() + ITERABLE
    modes = (*LAGGING, "plain", "resumable")
    with serving(config, tmp_path, "neighbour") as neighbour:
        near = connect(neighbour, "broadcast")
        beside = iter(near)
        nearby = take(beside, 2)
        truth = {mode: order_of(mode, neighbour, 0) for mode in LAGGING if mode != "queue"}
        truth["queue"] = cut(order(0))
        truth |= {"plain": COUNTED, "resumable": COUNTED}
        running = start(config, tmp_path)
        running.wait_for("ready")
        loaders = {m: connect(running, m, reconnect_s=60, prefetch=3) for m in modes}
        reading: dict[str, Iterator[Any]] = {m: iter(loader) for m, loader in loaders.items()}
        given: dict[str, list[list[int]]] = {mode: [] for mode in modes}

        def read_on(count: int | None) -> None:
            for mode in modes:
                some = itertools.islice(reading[mode], count)
                given[mode] += [b.tolist() for b in some] if mode not in LAGGING else read(some)

        for _time in range(2):
            read_on(3)
            workers = running.workers()
            os.killpg(running.pid, signal.SIGKILL)
            running.process.wait(10)
            assert not psutil.wait_procs(workers, timeout=2)[1]
            assert running.process.stderr is not None
            running.process.stderr.close()
            running = start(config, tmp_path)
        read_on(None)
        for batches in (given["queue"], truth["queue"]):
            batches.sort()  # a queue gives what is made first
        assert given == truth
        nearby += read(beside)
        assert nearby == truth["broadcast"]
        for loader in (*loaders.values(), near):
            loader.close()
        assert running.stop() == 0
        assert running.process.stderr is not None
        running.process.stderr.close()
