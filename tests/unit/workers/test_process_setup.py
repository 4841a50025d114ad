"""What a worker sets for itself: cores, niceness, output; and what it tells of itself."""

from __future__ import annotations

import io
import os
import sys

import numpy as np
import pytest

from loaderd_server.workers import process_setup, progress
from loaderd_server.workers.progress import ProgressPage


@pytest.fixture
def given_cores(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Four cores are allowed; the cores a worker asks for are kept here."""
    asked: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {2, 3, 6, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cores: asked.append(cores))
    return asked


def test_cores_are_dealt_one_to_a_worker_in_turn(given_cores: list[set[int]]) -> None:
    for worker in range(5):
        assert process_setup.settle(worker, "cores", 0) == []
    assert given_cores == [{2}, {3}, {6}, {7}, {2}]


def test_numa_nodes_are_dealt_in_turn_and_only_the_allowed_cores_of_them(
    given_cores: list[set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}]
    monkeypatch.setattr(process_setup, "_numa_nodes", lambda: nodes)
    for worker in range(3):
        assert process_setup.settle(worker, "numa", 0) == []
    assert given_cores == [{2, 3}, {6, 7}, {2, 3}]


def test_no_affinity_leaves_the_cores_alone(given_cores: list[set[int]]) -> None:
    assert process_setup.settle(1, "none", 0) == []
    assert given_cores == []


def test_own_memory_is_counted_in_bytes_as_it_grows() -> None:
    before = process_setup.rss_anon_bytes()
    block = np.ones(64 << 20, dtype=np.uint8)
    grown = process_setup.rss_anon_bytes() - before
    assert 48 << 20 < grown < 80 << 20
    assert block[-1] == 1


def test_output_that_cannot_be_flushed_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "stderr", None)
    process_setup.flush_output()


def test_the_progress_page_shows_the_row_to_whoever_maps_it() -> None:
    descriptor = progress.create()
    writer, reader = ProgressPage(os.dup(descriptor)), ProgressPage(descriptor)
    writer.clear()
    assert reader.read() is None
    writer.at(7)
    assert reader.read() == 7
    writer.at(-1)
    assert reader.read() is None
    writer.close()
    reader.close()
