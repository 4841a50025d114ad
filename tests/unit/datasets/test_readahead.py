"""Hints to the kernel: ranges are joined and bounded, and what cannot be read is passed over."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from loaderd_server.datasets import readahead


def ranges(*pairs: tuple[int, int]) -> list[tuple[int, int]]:
    starts, ends = np.array(pairs, np.int64).reshape(-1, 2).T
    return readahead.merged(starts, ends)


def test_near_ranges_are_one_and_far_ones_stay_apart() -> None:
    far = 1 << 20
    assert ranges() == []
    assert ranges((0, 10), (5, 7), (100, 120), (far, far + 9)) == [(0, 120), (far, far + 9)]


def test_ranges_stop_at_the_bounds() -> None:
    far = 1 << 20
    many = readahead.MOST_FILES + 5
    assert len(ranges(*((at * far, at * far + 1) for at in range(many)))) == readahead.MOST_FILES
    most = readahead.MOST_BYTES
    assert ranges((0, most - 7), (2 * most, 3 * most)) == [(0, most - 7), (2 * most, 2 * most + 7)]
    assert ranges((0, 5 * most), (6 * most, 7 * most)) == [(0, most)]


def test_files_stop_at_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [os.fsencode(tmp_path / str(number)) for number in range(9)]
    for path in paths[1:]:
        Path(os.fsdecode(path)).write_bytes(bytes(10))
    assert readahead.files(paths) == 80
    monkeypatch.setattr(readahead, "MOST_FILES", 4)
    assert readahead.files(paths) == 30
    monkeypatch.setattr(readahead, "MOST_BYTES", 15)
    assert readahead.files(paths) == 20
