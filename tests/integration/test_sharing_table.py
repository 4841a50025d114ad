"""The table of docs/sharing.md: each cell is a test of that name."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.serving import Daemon, serving
from tests.support.sharing import (
    CONFIG,
    LENGTH,
    MODES,
    TRAINER,
    connect,
    cut,
    indices,
    order,
    read,
    share,
    take,
)
from tests.support.trainers import Trainer, trainer

import loaderd

TABLE = Path(__file__).parents[2] / "docs" / "sharing.md"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with serving(CONFIG, tmp_path_factory.mktemp("sharing")) as running:
        yield running


def process(mode: str, daemon: Daemon, **arguments: Any) -> Any:
    """A trainer process of the stream of that mode."""
    return trainer(TRAINER, daemon.run_dir, mode, json.dumps(arguments))


def told(running: Trainer, count: int) -> list[list[int]]:
    running.tell(str(count))
    return [json.loads(running.line()) for _ in range(count)]


def whole_queue(daemon: Daemon, epoch: int, trainers: int) -> list[list[int]]:
    """What so many trainers of the queue are given of an epoch together, in no order."""
    given: list[list[int]] = []
    loaders = [connect("queue", daemon.run_dir, start=(epoch, 0)) for _ in range(trainers)]

    def work(loader: loaderd.Loader) -> None:
        for batch in loader:
            given.append(indices(batch))

    threads = [threading.Thread(target=work, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for loader in loaders:
        loader.close()
    return given


def test_the_table_of_the_page_has_a_test_for_each_cell() -> None:
    text = TABLE.read_text()
    rows = re.findall(r"^\|([^\n]*)\|$", text, re.MULTILINE)
    head = next(row for row in rows if row.strip().startswith("|") and "join" in row)
    events = [cell.strip() for cell in head.split("|") if cell.strip()]
    cells = {
        f"test_{row.split('|')[0].strip()}_{event.replace(' ', '_')}"
        for row in rows
        if row.split("|")[0].strip() in MODES and len(row.split("|")) == len(events) + 1
        for event in events
    }
    assert len(cells) == len(MODES) * 6
    assert cells <= globals().keys()


# --- broadcast ------------------------------------------------------------------------------


def test_broadcast_join(daemon: Daemon) -> None:
    wanted = cut(order())
    with connect("broadcast", daemon.run_dir) as first:
        reading = iter(first)
        assert take(reading, 10) == wanted[:10]
        with connect("broadcast", daemon.run_dir) as late:
            assert read(late) == wanted
        with connect("broadcast", daemon.run_dir, start="live") as live:
            seen = read(live)
            assert seen == wanted[-len(seen) :]
            assert len(wanted) - 14 <= len(seen) <= len(wanted) - 6
        with connect("broadcast", daemon.run_dir, start=(1, 5)) as placed:
            assert read(placed) == cut(order(1))[5:]
            assert read(placed) == cut(order(2))
        assert read(reading) == wanted[10:]


def test_broadcast_pause(daemon: Daemon) -> None:
    wanted = cut(order())
    with process("broadcast", daemon) as paused, connect("broadcast", daemon.run_dir) as other:
        paused.expect("ready")
        assert told(paused, 2) == wanted[:2]
        os.kill(paused.pid, signal.SIGSTOP)
        assert read(other) == wanted
        assert read(other) == cut(order(1))
        os.kill(paused.pid, signal.SIGCONT)
        assert told(paused, len(wanted) - 2) == wanted[2:]


def test_broadcast_crash(daemon: Daemon) -> None:
    wanted = cut(order())
    with process("broadcast", daemon) as victim, connect("broadcast", daemon.run_dir) as other:
        victim.expect("ready")
        reading = iter(other)
        assert told(victim, 3) == take(reading, 3)
        os.kill(victim.pid, signal.SIGKILL)
        assert read(reading) == wanted[3:]


def test_broadcast_daemon_restart(tmp_path: Path) -> None:
    goes_on_after_a_restart("broadcast", tmp_path, cut(order()))


def test_broadcast_end_of_epoch(daemon: Daemon) -> None:
    with connect("broadcast", daemon.run_dir) as fast, connect("broadcast", daemon.run_dir) as slow:
        behind = iter(slow)
        assert take(behind, 1) == cut(order())[:1]
        for epoch in range(3):
            assert read(fast) == cut(order(epoch))
        assert read(behind) == cut(order())[1:]


def test_broadcast_other_world_size(daemon: Daemon) -> None:
    with connect("broadcast", daemon.run_dir, rank=1, world_size=2) as loader:
        reading = iter(loader)
        first = take(reading, 4)
        state = loader.state_dict()
    with connect("broadcast", daemon.run_dir, rank=2, world_size=3) as loader:
        loader.load_state_dict(state)
        assert first + read(loader) == cut(order())


# --- shard ----------------------------------------------------------------------------------


def rank(daemon: Daemon, number: int, world_size: int, **arguments: Any) -> loaderd.Loader:
    return connect("shard", daemon.run_dir, rank=number, world_size=world_size, **arguments)


def test_shard_join(daemon: Daemon) -> None:
    with rank(daemon, 0, 2) as first:
        reading = iter(first)
        assert take(reading, 3) == cut(share(0, 2))[:3]
        with rank(daemon, 1, 2) as other, rank(daemon, 0, 2) as second_job:
            assert read(other) == cut(share(1, 2))
            assert read(second_job) == cut(share(0, 2))
        assert read(reading) == cut(share(0, 2))[3:]


def test_shard_pause(daemon: Daemon) -> None:
    with process("shard", daemon, rank=0, world_size=2) as paused, rank(daemon, 1, 2) as other:
        paused.expect("ready")
        assert told(paused, 1) == cut(share(0, 2))[:1]
        os.kill(paused.pid, signal.SIGSTOP)
        assert read(other) == cut(share(1, 2))
        os.kill(paused.pid, signal.SIGCONT)
        assert told(paused, 3) == cut(share(0, 2))[1:4]


def test_shard_crash(daemon: Daemon) -> None:
    with rank(daemon, 0, 2) as early:
        reading = iter(early)
        before = take(reading, 3)
        state = early.state_dict()
    with process("shard", daemon, rank=0, world_size=2) as victim, rank(daemon, 1, 2) as other:
        victim.expect("ready")
        assert told(victim, 3) == before
        os.kill(victim.pid, signal.SIGKILL)
        assert read(other) == cut(share(1, 2))
    with rank(daemon, 0, 2) as again:
        again.load_state_dict(state)
        assert before + read(again) == cut(share(0, 2))
        assert read(again) == cut(share(0, 2, 1))


def test_shard_daemon_restart(tmp_path: Path) -> None:
    goes_on_after_a_restart("shard", tmp_path, cut(share(1, 3)), rank=1, world_size=3)


def test_shard_end_of_epoch(daemon: Daemon) -> None:
    counts = []
    for number in range(4):
        with rank(daemon, number, 4) as loader:
            assert len(loader) == len(read(loader))
            counts.append(len(loader))
            assert read(loader) == cut(share(number, 4, 1))
    assert len(set(counts)) == 1


def test_shard_other_world_size(daemon: Daemon) -> None:
    seen: list[int] = []
    states = []
    for number in range(4):
        with rank(daemon, number, 4) as loader:
            seen += [i for batch in take(iter(loader), 2 + number % 2) for i in batch]
            states.append(loader.state_dict())
    for number in range(3):
        with rank(daemon, number, 3) as loader:
            loader.load_state_dict(states)
            seen += [i for batch in read(loader) for i in batch]
            assert read(loader) == cut(share(number, 3, 1))
    assert set(seen) == set(range(LENGTH))
    assert len(seen) < LENGTH + 3


# --- queue ----------------------------------------------------------------------------------


def test_queue_join(daemon: Daemon) -> None:
    with connect("queue", daemon.run_dir, start=(0, 0)) as first:
        reading = iter(first)
        before = take(reading, 5)
        with connect("queue", daemon.run_dir, start="live") as late:
            joined = iter(late)
            seen = take(joined, 3)
            del joined
        rest = read(reading)
    assert sorted(before + seen + rest) == sorted(cut(order()))


def test_queue_pause(daemon: Daemon) -> None:
    wanted = cut(order(1))
    with process("queue", daemon, start=[1, 0]) as paused:
        paused.expect("ready")
        given = told(paused, 1)
        os.kill(paused.pid, signal.SIGSTOP)
        with connect("queue", daemon.run_dir, start=(1, 0), prefetch=0) as other:
            reading = iter(other)
            # All but what the stopped one may have in hand: four credits, and the first one.
            given += take(reading, len(wanted) - 5)
            os.kill(paused.pid, signal.SIGCONT)
            paused.tell("99")  # it works on, to the end
            given += read(reading)
            while (line := paused.line()) != "over":
                given.append(json.loads(line))
    assert sorted(given) == sorted(wanted)


def test_queue_crash(daemon: Daemon) -> None:
    with process("queue", daemon, start=[2, 0]) as victim:
        victim.expect("ready")
        done = told(victim, 3)[:2]  # it asked for the third: so it is done with two
        os.kill(victim.pid, signal.SIGKILL)
        victim.end()
        assert sorted(done + whole_queue(daemon, 2, 2)) == sorted(cut(order(2)))


def test_queue_daemon_restart(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path) as running:
        with connect("queue", running.run_dir, start=(0, 0), reconnect_s=60) as loader:
            reading = iter(loader)
            given = take(reading, 5)
            kill(running)
            with serving(CONFIG, tmp_path) as again:
                given += take(reading, 10)
                with connect("queue", again.run_dir, start="live") as helper:
                    helping = iter(helper)
                    given += take(helping, 2)
                    del helping
                given += read(reading)
    assert sorted(given) == sorted(cut(order()))


def test_queue_end_of_epoch(daemon: Daemon) -> None:
    wanted = cut(order(4))
    with connect("queue", daemon.run_dir, start=(4, 0)) as one:
        with connect("queue", daemon.run_dir, start=(4, 0)) as two:
            first, second = iter(one), iter(two)
            given = take(first, 1) + take(second, 1)
            ends: list[str] = []

            def finish() -> None:
                given.extend(read(first))
                ends.append("one")

            thread = threading.Thread(target=finish)
            thread.start()
            given.extend(read(second))
            thread.join(60)
            assert ends == ["one"]
    assert sorted(given) == sorted(wanted)
    with connect("queue", daemon.run_dir, start=(4, 0)) as late:
        assert read(late) == []  # it is over, and stays so
        assert sorted(read(late)) == sorted(cut(order(5)))


def test_queue_other_world_size(daemon: Daemon) -> None:
    for epoch, trainers in ((6, 1), (7, 3)):
        assert sorted(whole_queue(daemon, epoch, trainers)) == sorted(cut(order(epoch)))


# --- independent ----------------------------------------------------------------------------


def test_independent_join(daemon: Daemon) -> None:
    with connect("independent", daemon.run_dir, seed=1) as one:
        reading = iter(one)
        first = take(reading, 4)
        with connect("independent", daemon.run_dir, seed=2) as two:
            other = read(two)
        with connect("independent", daemon.run_dir, seed=1) as same:
            mine = read(same)
        assert first + read(reading) == mine
    assert sorted(i for batch in mine for i in batch) == list(range(LENGTH))
    assert sorted(i for batch in other for i in batch) == list(range(LENGTH))
    assert mine != other


def own_order(daemon: Daemon, seed: int) -> list[list[int]]:
    with connect("independent", daemon.run_dir, seed=seed) as loader:
        return read(loader)


def test_independent_pause(daemon: Daemon) -> None:
    wanted = own_order(daemon, 3)
    with process("independent", daemon, seed=3) as paused:
        paused.expect("ready")
        assert told(paused, 2) == wanted[:2]
        os.kill(paused.pid, signal.SIGSTOP)
        assert own_order(daemon, 3) == wanted
        assert own_order(daemon, 4) != wanted
        os.kill(paused.pid, signal.SIGCONT)
        assert told(paused, 5) == wanted[2:7]


def test_independent_crash(daemon: Daemon) -> None:
    wanted = own_order(daemon, 5)
    with process("independent", daemon, seed=5) as victim:
        victim.expect("ready")
        with connect("independent", daemon.run_dir, seed=5) as other:
            reading = iter(other)
            assert told(victim, 3) == take(reading, 3)
            os.kill(victim.pid, signal.SIGKILL)
            assert read(reading) == wanted[3:]


def test_independent_daemon_restart(tmp_path: Path) -> None:
    with serving(CONFIG, tmp_path, "oracle") as running:
        wanted = own_order(running, 9)
    goes_on_after_a_restart("independent", tmp_path, wanted, seed=9)


def test_independent_end_of_epoch(daemon: Daemon) -> None:
    with connect("independent", daemon.run_dir, seed=6) as fast:
        with connect("independent", daemon.run_dir, seed=7) as slow:
            behind = iter(slow)
            first = take(behind, 1)
            epochs = [read(fast) for _ in range(3)]
            assert first + read(behind) == own_order(daemon, 7)
    assert len({json.dumps(epoch) for epoch in epochs}) == 3


def test_independent_other_world_size(daemon: Daemon) -> None:
    wanted = own_order(daemon, 8)
    with connect("independent", daemon.run_dir, seed=8, rank=1, world_size=2) as loader:
        assert read(loader) == wanted


# --- the daemon's death ---------------------------------------------------------------------


def kill(running: Daemon) -> None:
    """The daemon and all it started die at once."""
    os.killpg(running.pid, signal.SIGKILL)
    running.process.wait(10)


def goes_on_after_a_restart(
    mode: str, tmp_path: Path, wanted: list[list[int]], **arguments: Any
) -> None:
    """With reconnect_s nothing is lost or repeated; without, the loss is told and batches stay."""
    with serving(CONFIG, tmp_path) as running:
        with (
            connect(mode, running.run_dir, reconnect_s=60, **arguments) as loader,
            connect(mode, running.run_dir, **arguments) as frail,
        ):
            reading, losing = iter(loader), iter(frail)
            kept = next(losing)
            before = take(reading, 4)
            kill(running)
            with pytest.raises(loaderd.DaemonLost, match="Start `loaderd serve` again"):
                list(losing)
            assert indices(kept) == wanted[0]
            with serving(CONFIG, tmp_path):
                assert before + read(reading) == wanted
                assert loader.stats().reconnects == 1
