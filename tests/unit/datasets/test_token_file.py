"""Windows of tokens and their targets; batches gathered as samples are; errors with numbers."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderd_server.datasets import TokenFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.arange(100, dtype="<u2").tofile(tmp_path / "tokens.bin")
    return tmp_path / "tokens.bin"


def test_a_sample_is_a_window_and_its_targets(path: Path) -> None:
    dataset = TokenFile(path, window=8)
    x, y = dataset[2]
    assert x.dtype == y.dtype == np.int64
    assert x.tolist() == list(range(16, 24))
    assert y.tolist() == list(range(17, 25))


@pytest.mark.parametrize(
    ("window", "stride", "count"),
    [(8, None, 12), (9, None, 11), (99, None, 1), (8, 4, 23), (8, 1, 92)],
)
def test_every_window_has_its_last_target(
    path: Path, window: int, stride: int | None, count: int
) -> None:
    dataset = TokenFile(path, window=window, stride=stride)
    assert len(dataset) == count
    assert dataset[count - 1][1][-1] <= 99
    assert dataset[-1][0].tolist() == dataset[count - 1][0].tolist()
    with pytest.raises(IndexError, match=f"index {count} of {count} windows"):
        dataset[count]


def test_a_batch_is_its_samples(path: Path) -> None:
    dataset = TokenFile(path, window=8, stride=3)
    indices = [5, 0, 5, -1, 29]
    for (x, y), index in zip(dataset.__getitems__(indices), indices, strict=True):
        np.testing.assert_array_equal(x, dataset[index][0])
        np.testing.assert_array_equal(y, dataset[index][1])
    assert dataset.__getitems__([]) == []


def test_an_index_out_of_a_batch_is_named(path: Path) -> None:
    with pytest.raises(IndexError, match="index 77 of 12 windows"):
        TokenFile(path, window=8).__getitems__([3, 77])


def test_uint32_holds_large_vocabularies(tmp_path: Path) -> None:
    np.array([70_000, 4_000_000_000, 1], "<u4").tofile(tmp_path / "t")
    x, y = TokenFile(tmp_path / "t", window=2, dtype="uint32")[0]
    assert x.tolist() == [70_000, 4_000_000_000]
    assert y.tolist() == [4_000_000_000, 1]


def test_samples_are_the_callers_own(path: Path) -> None:
    dataset = TokenFile(path, window=8)
    for x, y in (dataset[0], dataset.__getitems__([0, 1])[0]):
        x[:] = 0
        assert y.tolist() == list(range(1, 9))
    assert dataset[0][0].tolist() == list(range(8))


def test_it_travels_as_its_arguments(path: Path) -> None:
    data = pickle.dumps(TokenFile(path, window=8, stride=2))
    assert len(data) < 1000
    again = pickle.loads(data)
    assert (len(again), again.window, again.stride) == (46, 8, 2)


def test_its_fingerprint_changes_with_the_file(path: Path, tmp_path: Path) -> None:
    first = TokenFile(path, window=8)
    assert TokenFile(path, window=4).fingerprint() == first.fingerprint()
    np.arange(100, dtype="<u2").tofile(tmp_path / "other")
    assert TokenFile(tmp_path / "other", window=8).fingerprint() != first.fingerprint()
    os.utime(path, ns=(1, 1))
    assert TokenFile(path, window=8).fingerprint() != first.fingerprint()


def test_no_cache_is_asked_for_what_the_page_cache_holds(path: Path) -> None:
    assert not hasattr(TokenFile(path, window=8), "cacheable")


def test_a_hint_of_what_is_coming_never_raises(path: Path) -> None:
    dataset = TokenFile(path, window=8)
    for indices in (np.arange(-5, 99), np.empty(0, np.int64), np.array([11])):
        dataset.will_need(indices)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"window": 0}, "window is 0; it is 1 token or more"),
        ({"window": 4, "stride": 0}, "stride is 0; it is 1 token or more"),
        ({"window": 4, "dtype": "int64"}, "dtype is 'int64'; it is one of uint16, uint32"),
        ({"window": 100}, "has 100 uint16 tokens; one window of 100 .* need 101"),
    ],
)
def test_bad_arguments_are_refused(path: Path, args: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TokenFile(path, **args)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"12345")
    with pytest.raises(ValueError, match="has 5 bytes, no whole number of uint16 tokens"):
        TokenFile(tmp_path / "odd", window=1)
    (tmp_path / "none").write_bytes(b"")
    with pytest.raises(ValueError, match="has 0 uint16 tokens"):
        TokenFile(tmp_path / "none", window=1)


def test_a_missing_file_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file '.*gone'.*looked for from"):
        TokenFile(tmp_path / "gone", window=1)
