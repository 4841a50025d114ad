"""The chaos run's own checks find what they are for: planted gaps, repeats and wrong bytes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.chaos.belongings import MARK, descriptors, processes_marked
from tests.chaos.journal import Entry, Journal, Kind, read
from tests.chaos.oracle import digest
from tests.chaos.verdict import Gap, check_ordered, check_queue, tally

LENGTH = 2
#: The first process: epoch 0 in whole, then batch 0 of epoch 1 in hand when it was killed.
WHOLE: list[tuple[Kind, int, int, int]] = [
    ("took", 1, 0, 0), ("state", 1, 0, 0), ("took", 1, 0, 1), ("state", 1, 0, 1), ("ended", 1, 0, 0),
    ("took", 1, 1, 0), ("began", 2, 0, 0), ("took", 2, 1, 0), ("state", 2, 1, 0), ("left", 2, 0, 0),
]  # fmt: skip


def _entries(*lines: tuple[Kind, int, int, int], daemon: int = 9) -> list[Entry]:
    return [
        Entry(kind, float(at), pid, daemon, epoch, batch)
        for at, (kind, pid, epoch, batch) in enumerate(lines)
    ]


def test_a_batch_in_hand_at_a_death_may_come_again() -> None:
    check_ordered("role", _entries(*WHOLE), LENGTH)
    counted = tally("role", _entries(*WHOLE))
    assert (counted.batches, counted.repeated, counted.epochs) == (4, 1, 1)


@pytest.mark.parametrize(
    "entries",
    [
        _entries(*WHOLE[:1], *WHOLE[2:]),  # never done with batch 0
        _entries(*WHOLE[:2], *WHOLE[4:]),  # the epoch ends before batch 1
        _entries(*WHOLE[2:]),  # begins with batch 1
        _entries(*WHOLE, ("took", 2, 1, 0)),  # once more though it was done
        _entries(*WHOLE[:6], ("took", 1, 1, 0)),  # twice within one process
    ],
)
def test_a_gap_or_a_repeat_is_found(entries: Sequence[Entry]) -> None:
    with pytest.raises(Gap):
        check_ordered("role", entries, LENGTH)


def test_a_queue_that_leaves_a_batch_out_is_found() -> None:
    lines = _entries(("took", 1, 0, 0), ("state", 1, 0, 0), ("ended", 1, 0, 0))
    with pytest.raises(Gap, match=r"nobody did batches \[1\]"):
        check_queue({"a": lines}, LENGTH)


def test_a_queue_may_give_again_what_a_dead_trainer_or_a_dead_daemon_had_given() -> None:
    dead = _entries(("took", 1, 0, 0), ("took", 2, 0, 0), ("state", 2, 0, 0))
    assert check_queue({"a": dead}, LENGTH).given_again == 1
    lives_on = _entries(("took", 1, 0, 0), ("took", 2, 0, 0), ("took", 1, 0, 1))
    with pytest.raises(Gap, match="twice"):
        check_queue({"a": lives_on}, LENGTH)
    by_another = [lives_on[0], dataclasses.replace(lives_on[1], daemon=10), lives_on[2]]
    assert check_queue({"a": by_another}, LENGTH).given_again == 1


def test_one_flipped_bit_is_another_digest() -> None:
    rows = np.arange(8.0).reshape(2, 4)
    right = digest(rows, [1, 2], ["a", "b"])
    rows.view(np.uint8)[1, 3] ^= 1
    assert digest(rows, [1, 2], ["a", "b"]) != right
    assert digest(np.arange(8.0).reshape(2, 4), [1, 2], ["a", "c"]) != right


def test_a_line_cut_short_by_a_kill_is_not_read_nor_joined(tmp_path: Path) -> None:
    path = tmp_path / "role.journal"
    journal = Journal(path)
    journal.write("took", epoch=1, batch=2)
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "st')
    journal = Journal(path)
    journal.write("state", epoch=1, batch=2)
    journal.close()
    assert [(e.kind, e.epoch, e.batch) for e in read(path)] == [("took", 1, 2), ("state", 1, 2)]


def test_a_process_and_a_descriptor_left_behind_are_found() -> None:
    before = descriptors(os.getpid())
    run = f"planted {os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, MARK: run}
    )
    try:
        assert any(str(process.pid) in found for found in processes_marked(run))
        assert (descriptors(os.getpid()) - before)["pipe"] == 1
    finally:
        process.communicate()
    assert processes_marked(run) == []
