"""A stream's settings of sharing, from the configuration to what trainers see."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

from tests.support.serving import serving
from tests.support.sharing import CONFIG, TRAINER, connect, cut, indices, order, read, take
from tests.support.trainers import trainer

STREAMS = (
    CONFIG
    + """\
  waits: {dataset: rows, batch_size: 8, seed: 11, lag: wait, patience_s: 0.5, window: 3}
  awaits: {dataset: rows, batch_size: 8, seed: 11, await_trainers: {count: 2}}
  loses: {dataset: rows, batch_size: 8, seed: 11, mode: queue, redeliver: false}
"""
)


def test_nothing_is_made_before_the_awaited_trainers_start(tmp_path: Path) -> None:
    with serving(STREAMS, tmp_path) as daemon:
        got: list[list[int]] = []
        with (
            connect("awaits", daemon.run_dir) as first,
            connect("awaits", daemon.run_dir) as second,
        ):
            early = iter(first)
            thread = threading.Thread(target=lambda: got.extend(take(early, 3)))
            thread.start()
            thread.join(0.5)
            assert got == []  # it has begun, and waits for the other
            assert read(second) == cut(order())
            thread.join(60)
    assert got == cut(order())[:3]


def test_the_foremost_waits_for_its_patience_and_says_how_long(tmp_path: Path) -> None:
    with serving(STREAMS, tmp_path) as daemon:
        with connect("waits", daemon.run_dir) as slow, connect("waits", daemon.run_dir) as fast:
            behind = iter(slow)
            assert take(behind, 1) == cut(order())[:1]
            assert read(fast) == cut(order())
            stats = fast.stats()
            assert stats.stalls >= 1
            assert stats.stalled_s >= 0.4
            daemon.wait_for(
                "trainer 1 of stream 'waits' is 3 batches behind and was waited for 0.5 s"
            )
            assert read(behind) == cut(order())[1:]
            assert slow.stats().remade > 0
            assert slow.stats().stalls == 0


def test_what_dies_with_a_queue_s_trainer_is_lost_where_that_is_asked_for(tmp_path: Path) -> None:
    with serving(STREAMS, tmp_path) as daemon:
        with trainer(TRAINER, daemon.run_dir, "loses", json.dumps({"start": [0, 0]})) as victim:
            victim.expect("ready")
            victim.tell("2")
            seen = [json.loads(victim.line()) for _ in range(2)]
            os.kill(victim.pid, signal.SIGKILL)
            victim.end()
            with connect("loses", daemon.run_dir, start=(0, 0)) as other:
                rest = [indices(batch) for batch in other]
    wanted = cut(order())
    assert all(batch in wanted for batch in seen + rest)
    assert seen[0] not in rest  # it was done with it
    lost = [batch for batch in wanted if batch not in seen + rest]
    assert 1 <= len(lost) <= 4
    assert len(rest) == len({json.dumps(batch) for batch in rest})
