"""Trainers that come, hold, write, fork, stop and die: cases 1, 2, 3, 9, 22, 26, 27, 28 and 30."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.support.serving import Daemon, serving
from tests.support.trainers import run, trainer

import loaderd
from loaderd.connection import Connection, Patience
from loaderd_protocol.address import Address

COUNTING = """
workers: {{count: 2}}
datasets:
  rows: {{target: "tests.support.case_datasets:Counting", args: {{length: {length}}}}}
streams:
  train: {{dataset: rows, batch_size: 4, sampler: sequential, slots: {slots}}}
"""
LENGTH = 160
BATCHES = LENGTH // 4


def config(length: int = LENGTH, slots: int = 10) -> str:
    return COUNTING.format(length=length, slots=slots)


def truth(batch: int) -> torch.Tensor:
    return torch.arange(batch * 4, batch * 4 + 4).float()[:, None].expand(4, 8)


READ_ALL = """
loader = loaderd.connect("train", address=ADDRESS)
for i, batch in enumerate(loader):
    assert torch.equal(batch, torch.arange(i * 4, i * 4 + 4).float()[:, None].expand(4, 8)), (i, batch)
say(i + 1)
"""

HOLD_TWO = """
loader = loaderd.connect("train", address=ADDRESS)
it = iter(loader)
a, b = next(it), next(it)
say("holding")
wait()
"""


def status(daemon: Daemon) -> Any:
    shown = subprocess.run(
        [sys.executable, "-m", "loaderd_server", "status", "--json",
         "--address", str(daemon.run_dir)],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    return json.loads(shown.stdout)


def eventually(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Asks again and again, as there is no event to wait on in another process."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            return False
    return True


def arena_inodes(daemon: Daemon) -> set[int]:
    folder = Path(f"/proc/{daemon.pid}/fd")
    return {
        os.stat(link).st_ino for link in folder.iterdir() if "/memfd:loaderd" in os.readlink(link)
    }


def test_case_1_a_third_trainer_reads_after_one_left_and_one_was_killed(tmp_path: Path) -> None:
    with serving(config(), tmp_path) as daemon:
        before = arena_inodes(daemon)
        assert run(READ_ALL, daemon.run_dir) == [str(BATCHES)]
        with trainer(HOLD_TWO, daemon.run_dir) as second:
            second.expect("holding")
            second.process.kill()
            assert second.end() == -signal.SIGKILL
        assert run(READ_ALL, daemon.run_dir) == [str(BATCHES)]
        assert arena_inodes(daemon) >= before


@pytest.mark.parametrize("order", ["del, close", "close", "nothing", "close twice"])
def test_case_2_a_kept_batch_outlives_loader_client_and_daemon(tmp_path: Path, order: str) -> None:
    script = f"""
    loader = loaderd.connect("train", address=ADDRESS)
    it = iter(loader)
    kept = next(it)
    order = {order!r}
    if order.startswith("close"):
        loader.close()
    if order == "close twice":
        loader.close()
    if order.startswith("del"):
        del it, loader
        gc.collect()
    say("kept")
    wait()
    say(kept.sum(1).tolist())
    """
    with serving(config(), tmp_path) as daemon, trainer(script, daemon.run_dir) as holder:
        holder.expect("kept")
        assert daemon.stop() == 0
        holder.tell()
        holder.expect("[0.0, 8.0, 16.0, 24.0]")
        assert holder.end() == 0, holder.errors()


def test_case_3_a_list_of_the_loader_is_the_plain_loop(tmp_path: Path) -> None:
    with (
        serving(config(), tmp_path) as daemon,
        loaderd.connect("train", address=daemon.run_dir) as loader,
    ):
        batches = list(loader)
        assert len(batches) == BATCHES == 4 * 10
        for index, batch in enumerate(batches):
            assert torch.equal(batch, truth(index))


def test_case_3_a_held_batch_stays_while_more_than_the_slots_go_by(tmp_path: Path) -> None:
    with (
        serving(config(), tmp_path) as daemon,
        loaderd.connect("train", address=daemon.run_dir) as loader,
    ):
        iterator = iter(loader)
        held = next(iterator)
        for index in range(1, 10 + 3):
            assert torch.equal(next(iterator), truth(index))
        assert torch.equal(held, truth(0))
        del iterator, held


def test_case_9_the_slots_of_a_killed_trainer_are_back_within_a_second(tmp_path: Path) -> None:
    with (
        serving(config(), tmp_path) as daemon,
        loaderd.connect("train", address=daemon.run_dir) as loader,
    ):
        iterator = iter(loader)
        first = next(iterator).clone()
        with trainer(HOLD_TWO, daemon.run_dir) as victim:
            victim.expect("holding")
            assert len(status(daemon)["trainers"]) >= 2
            victim.process.kill()
            gone = eventually(lambda: len(status(daemon)["trainers"]) == 1, 5)
            assert gone, status(daemon)["trainers"]
        assert torch.equal(first, truth(0))
        for index in range(1, BATCHES):
            assert torch.equal(next(iterator), truth(index))
        with pytest.raises(StopIteration):
            next(iterator)


def test_case_22_what_one_trainer_writes_in_place_nobody_else_sees(tmp_path: Path) -> None:
    write = """
    loader = loaderd.connect("train", address=ADDRESS)
    for epoch in range(2):
        for i, batch in enumerate(loader):
            clean = torch.arange(i * 4, i * 4 + 4).float()[:, None].expand(4, 8)
            assert torch.equal(batch, clean), (epoch, i)
            batch += 100
            assert torch.equal(batch, clean + 100)
    say("wrote")
    """
    with serving(config(), tmp_path) as daemon, trainer(write, daemon.run_dir) as writer:
        with loaderd.connect("train", address=daemon.run_dir) as loader:
            for _epoch in range(2):
                for index, batch in enumerate(loader):
                    assert torch.equal(batch, truth(index))
        writer.expect("wrote")
        assert writer.end() == 0


FORKING = """
loader = loaderd.connect("train", address=ADDRESS)
it = iter(loader)
a, b = next(it), next(it)
rx, tx = os.pipe()
out_rx, out_tx = os.pipe()
child = os.fork()
if child == 0:
    os.close(tx)
    os.read(rx, 1)
    good = a[:, 0].tolist() == [0, 1, 2, 3] and b[:, 0].tolist() == [4, 5, 6, 7]
    os.write(out_tx, b"good" if good else b"bad!")
    os._exit(0)
os.close(rx)
say(child)
"""


def test_case_26_a_forked_child_keeps_its_batches_while_the_parent_goes_on(tmp_path: Path) -> None:
    script = FORKING + """
del a, b
for i, batch in enumerate(it, 2):
    assert batch[0, 0] == i * 4, (i, batch)
os.write(tx, b"x")
say(os.read(out_rx, 4).decode())
os.waitpid(child, 0)
"""  # fmt: skip
    with serving(config(), tmp_path) as daemon:
        assert run(script, daemon.run_dir)[1] == "good"


def test_case_26_slots_come_back_at_the_parents_death_though_its_child_lives(
    tmp_path: Path,
) -> None:
    script = FORKING + "\nwait()\n"
    with serving(config(), tmp_path) as daemon, trainer(script, daemon.run_dir) as parent:
        child = psutil.Process(int(parent.line()))
        parent.process.kill()
        parent.end()
        try:
            gone = eventually(lambda: status(daemon)["trainers"] == [], 5)
            assert gone, status(daemon)["trainers"]
        finally:
            child.kill()


def test_case_26_a_child_that_goes_on_iterating_attaches_anew(tmp_path: Path) -> None:
    script = """
    loader = loaderd.connect("train", address=ADDRESS)
    it = iter(loader)
    a, b = next(it), next(it)
    child = os.fork()
    seen = [int(batch[0, 0]) // 4 for batch in it]
    assert seen == list(range(2, 40)), seen
    assert a[0, 0] == 0 and b[0, 0] == 4
    if child == 0:
        loader.close()
        os._exit(0)
    _, code = os.waitpid(child, 0)
    say(code)
    """
    with serving(config(), tmp_path) as daemon:
        assert run(script, daemon.run_dir) == ["0"]


def test_case_27_no_stale_byte_after_writes_and_reclaim(tmp_path: Path) -> None:
    script = """
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    MADV_PAGEOUT = 21
    loader = loaderd.connect("train", address=ADDRESS)
    for epoch in range(3):
        for i, batch in enumerate(loader):
            assert batch[0, 0] == i * 4 and batch[3, 7] == i * 4 + 3, (epoch, i, batch)
            batch.fill_(-1)
            page = batch.data_ptr() & ~4095
            libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(4096), MADV_PAGEOUT)
    say("clean")
    """
    with serving(config(), tmp_path) as daemon:
        assert run(script, daemon.run_dir) == ["clean"]


def test_case_28_a_batch_of_a_loader_that_nobody_kept(tmp_path: Path) -> None:
    script = """
    x = next(iter(loaderd.connect("train", address=ADDRESS)))
    gc.collect()
    say("have")
    wait()
    say(x[:, 0].tolist())
    """
    with serving(config(), tmp_path) as daemon, trainer(script, daemon.run_dir) as keeper:
        keeper.expect("have")
        assert run(READ_ALL, daemon.run_dir) == [str(BATCHES)]
        keeper.tell()
        keeper.expect("[0.0, 1.0, 2.0, 3.0]")
        assert keeper.end() == 0, keeper.errors()


def test_case_30_a_stopped_daemon_raises_after_timeout_s_and_then_goes_on(tmp_path: Path) -> None:
    script = """
    loader = loaderd.connect("train", address=ADDRESS, timeout_s=2, prefetch=0)
    it = iter(loader)
    seen = [int(next(it)[0, 0])]
    say("started")
    wait()
    try:
        while True:
            seen.append(int(next(it)[0, 0]))
    except loaderd.DaemonTimeout as error:
        say(str(error).replace(chr(10), " "))
    wait()
    seen += [int(batch[0, 0]) for batch in it]
    assert seen == list(range(0, 160, 4)), seen
    say("complete")
    """
    with serving(config(), tmp_path) as daemon, trainer(script, daemon.run_dir) as waiting:
        waiting.expect("started")
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            waiting.tell()
            said = waiting.line()
            assert str(daemon.pid) in said
            assert "stopped" in said
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        waiting.tell()
        waiting.expect("complete")


def test_the_daemons_death_is_news_within_two_seconds(tmp_path: Path) -> None:
    script = """
    import time
    loader = loaderd.connect("train", address=ADDRESS)
    it = iter(loader)
    kept = next(it)
    say("started")
    wait()
    began = time.monotonic()
    try:
        while True:
            next(it)
    except loaderd.DaemonLost as error:
        assert time.monotonic() - began < 2
        say("lost", str(error).count(sys.argv[2]))
    assert kept[:, 0].tolist() == [0, 1, 2, 3]
    """
    with serving(config(), tmp_path) as daemon:
        with trainer(script, daemon.run_dir, str(daemon.pid)) as mourner:
            mourner.expect("started")
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.process.wait(10)
            mourner.tell()
            mourner.expect("lost 1")
            assert mourner.end() == 0, mourner.errors()


def test_no_daemon_is_an_error_at_once_that_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(loaderd.DaemonNotRunning, match=r"loaderd serve"):
        loaderd.connect("train", address=tmp_path / "nobody")


def test_a_trainer_that_locks_its_memory_gets_copies_and_no_stale_byte(tmp_path: Path) -> None:
    script = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    when, flags = sys.argv[2], int(sys.argv[3])
    loader = loaderd.connect("train", address=ADDRESS)
    locked = when == "before" and libc.mlockall(flags) != 0
    for epoch in range(2):
        for i, batch in enumerate(loader):
            assert batch[0, 0] == i * 4 and batch[3, 7] == i * 4 + 3, (epoch, i, batch)
            batch.fill_(-1)
            if when == "within" and (epoch, i) == (0, 5):
                locked = libc.mlockall(flags) != 0
    say("skip" if locked else loader.stats().copies > 0)
    """
    with serving(config(), tmp_path) as daemon:
        for when, flags in (("before", "3"), ("before", "2"), ("within", "1"), ("within", "3")):
            assert run(script, daemon.run_dir, when, flags) in (["True"], ["skip"])


def test_a_trainer_that_writes_all_of_every_batch_gets_copies_by_and_by(tmp_path: Path) -> None:
    script = """
    loader = loaderd.connect("train", address=ADDRESS)
    for i, batch in enumerate(loader):
        assert batch[0, 0] == i * 4
        batch.mul_(2)
        assert batch[0, 0] == i * 8
    say(loader.stats().copies > 20)
    """
    with serving(config(), tmp_path) as daemon:
        assert run(script, daemon.run_dir) == ["True"]


def test_a_daemon_that_does_not_answer_is_told_of_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(config(), tmp_path) as daemon:
        patience = Patience(ping_after_s=0.1, warn_after_s=0.3)
        connection = Connection(Address(daemon.run_dir), 1.5, patience)
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            connection.expect(1)
            with pytest.raises(loaderd.DaemonTimeout, match=r"stopped \(SIGSTOP\)"):
                connection.receive(1, "a batch")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        (record,) = caplog.records
        assert f"the daemon (pid {daemon.pid}) is stopped (SIGSTOP)" in record.getMessage()
        connection.close()


def test_two_iterators_in_two_threads_get_each_its_epoch(tmp_path: Path) -> None:
    with serving(config(), tmp_path) as daemon:
        with loaderd.connect("train", address=daemon.run_dir, timeout_s=30) as loader:
            with ThreadPoolExecutor(4) as pool:
                epochs = list(pool.map(lambda _i: [int(b[0, 0]) for b in loader], range(8)))
    assert epochs == [list(range(0, LENGTH, 4))] * 8


def test_closing_does_not_wait_for_a_stopped_daemon(tmp_path: Path) -> None:
    with serving(config(), tmp_path) as daemon:
        loader = loaderd.connect("train", address=daemon.run_dir)
        kept = next(iter(loader))
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            loader.close()
            assert time.monotonic() - began < 10
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert torch.equal(kept, truth(0))


def test_a_batch_that_outlives_its_loader_holds_no_slot_but_its_own(tmp_path: Path) -> None:
    with serving(config(), tmp_path) as daemon:
        kept = next(iter(loaderd.connect("train", address=daemon.run_dir)))
        gc.collect()
        assert eventually(lambda: status(daemon)["streams"][0]["slots_held"] == 1, 10)
        assert torch.equal(kept, truth(0))
        del kept
        assert eventually(lambda: status(daemon)["streams"][0]["slots_held"] == 0, 10)
