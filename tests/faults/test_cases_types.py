"""What travels, and how: cases 4, 14, 15, 16 and 25."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import case_datasets
from tests.support.serving import serving
from tests.support.trainers import run

import loaderd

MODULE = "tests.support.case_datasets"


def config(target: str, collate: str | None = None, batch_size: int = 4) -> str:
    chosen = f"{MODULE}:{collate}" if collate else "default"
    return f"""
workers: {{count: 2}}
datasets: {{d: {{target: "{MODULE}:{target}"}}}}
streams:
  train: {{dataset: d, batch_size: {batch_size}, sampler: sequential, collate: "{chosen}"}}
"""


def batches(text: str, directory: Path, **options: Any) -> list[Any]:
    with serving(text, directory) as daemon:
        with loaderd.connect("train", address=daemon.run_dir, **options) as loader:
            return list(loader)


def assert_same(got: Any, wanted: Any, place: str = "batch") -> None:
    """Equal in type, values, dtype, shape and strides, all the way down."""
    assert type(got) is type(wanted), place
    if isinstance(wanted, torch.Tensor):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), place
        assert got.stride() == wanted.stride(), place
        assert torch.equal(got.view_as(wanted).to(torch.complex64), wanted.to(torch.complex64)), (
            place
        )
    elif isinstance(wanted, np.ndarray):
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype, place
    elif isinstance(wanted, dict):
        assert list(got) == list(wanted), place
        for key, value in wanted.items():
            assert_same(got[key], value, f"{place}[{key!r}]")
    elif isinstance(wanted, list | tuple):
        assert len(got) == len(wanted), place
        for position, value in enumerate(wanted):
            assert_same(got[position], value, f"{place}[{position}]")
    elif isinstance(wanted, case_datasets.Pair):
        assert_same(got.left, wanted.left, f"{place}.left")
        assert got.right == wanted.right, place
    else:
        assert got == wanted, place


def test_case_4_ragged_lists_leave_nothing_of_an_earlier_batch(tmp_path: Path) -> None:
    first, second, last = batches(config("Ragged", "keep_lists"), tmp_path)
    dataset = case_datasets.Ragged()
    for got, indices in ((first, range(4)), (second, range(4, 8)), (last, [8])):
        assert_same(got, case_datasets.keep_lists([dataset[i] for i in indices]))
    assert last[1] == ["name8"]
    assert first[3][0].shape == (0, 4)


def test_cases_14_and_15_every_dense_leaf_keeps_value_type_shape_and_strides(
    tmp_path: Path,
) -> None:
    (got,) = batches(config("Indices", "collate_leaves"), tmp_path)
    wanted = case_datasets.leaves()
    wanted["conj"] = wanted["conj"].resolve_conj()
    wanted["conj_imag"] = wanted["conj_imag"].resolve_neg()
    assert got["conj"].item() == 1 - 2j
    assert got["conj_imag"].item() == -2
    for name, value in wanted.items():
        if name.startswith("conj"):
            assert got[name].shape == value.shape
            continue
        assert_same(got[name], value, name)


def test_case_16_a_slice_of_a_large_tensor_travels_alone(tmp_path: Path) -> None:
    text = "memory: 32MiB\n" + config("Indices", "collate_slice")
    (got,) = batches(text, tmp_path)
    assert torch.equal(got, torch.arange(10).float())
    assert got.untyped_storage().nbytes() == 40


def test_case_25_values_come_out_as_they_went_in(tmp_path: Path) -> None:
    (got,) = batches(config("Indices", "collate_traps"), tmp_path)
    assert_same(got, case_datasets.traps())


def test_case_25_what_cannot_travel_is_an_error_that_names_place_and_type(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"(?s)\['deep'\]\[0\]\['odd'\].*Opaque"):
        batches(config("Indices", "collate_opaque"), tmp_path)


def test_classes_that_the_trainer_has_not_imported_come_as_the_plain_equivalent(
    tmp_path: Path,
) -> None:
    script = """
    batch = next(iter(loaderd.connect("train", address=ADDRESS)))
    point, pair = batch["point"], batch["pair"]
    say(type(point).__name__, point._fields, point.x.tolist())
    say(type(pair).__name__, pair.right, "tests.support.case_datasets" in sys.modules)
    """
    with serving(config("Indices", "collate_leaves"), tmp_path) as daemon:
        assert run(script, daemon.run_dir) == [
            "Point ('x', 'y') [1.0, 1.0]",
            "Pair right False",
        ]


def test_numpy_output_has_the_same_values_without_torch_tensors(tmp_path: Path) -> None:
    text = config("Ragged", "keep_lists")
    first, *_ = batches(text, tmp_path, output="numpy")
    assert isinstance(first[0][1], np.ndarray)
    assert [int(item) for item in first[0]] == [0, 1, 2, 3]
