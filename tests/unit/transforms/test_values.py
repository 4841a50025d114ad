"""Normalize and to_chw against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderd_server.transforms import Normalize, ToChw

RNG = np.random.Generator(np.random.Philox(0))
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def noise(*shape: int, dtype: str = "u1") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize(("dtype", "largest"), [("uint8", 255), ("uint16", 65535), ("float32", 1)])
def test_normalize_is_the_formula(dtype: str, largest: int) -> None:
    image = noise(6, 5, 3, dtype=dtype)
    result = Normalize(MEAN, STD)(image, RNG)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result, (image / largest - MEAN) / STD, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 3), (1, 1, 4)])
def test_one_number_holds_for_all_channels(shape: Any) -> None:
    image = noise(*shape)
    result = Normalize(0.5, 0.25)(image, RNG)
    assert result.shape == shape
    np.testing.assert_allclose(result, (image / 255 - 0.5) / 0.25, rtol=1e-4, atol=1e-5)


def test_normalize_follows_images_of_changing_size_and_type() -> None:
    normalize = Normalize(MEAN, STD)
    for image in (noise(4, 5, 3), noise(4, 9, 3), noise(4, 5, 3, dtype="f4"), noise(4, 5, 3)):
        largest = 255 if image.dtype == np.uint8 else 1
        expected = (image / largest - MEAN) / STD
        np.testing.assert_allclose(normalize(image, RNG), expected, rtol=1e-4, atol=1e-4)


def test_normalize_does_not_touch_its_input() -> None:
    image = noise(4, 4, 3, dtype="f4")
    before = image.copy()
    Normalize(MEAN, STD)(image, RNG)
    np.testing.assert_array_equal(image, before)


def test_another_number_of_channels_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"has 3 channels; this image of shape \(4, 4\) has 1"):
        Normalize(MEAN, STD)(noise(4, 4), RNG)
    with pytest.raises(ValueError, match=r"to_chw comes after normalize"):
        Normalize(MEAN, STD)(noise(3, 4, 5), RNG)


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.5, 0, "std of normalize is 0; each is above 0"),
        ([1, 2], [1, 2, 3], "has 2 means and 3 stds"),
        ([], 1, r"mean of normalize is \[\]"),
        (float("nan"), 1, "mean of normalize is nan"),
    ],
)
def test_bad_arguments_are_refused(mean: Any, std: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Normalize(mean, std)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_to_chw_puts_channels_first(channels: int, dtype: str) -> None:
    image = noise(6, 5, channels, dtype=dtype)
    for view in (image, image[::-1, ::2]):
        result = ToChw()(view, RNG)
        np.testing.assert_array_equal(result, view.transpose(2, 0, 1))
        assert result.dtype == dtype
        assert result.flags.c_contiguous


def test_gray_gets_a_channel() -> None:
    assert ToChw()(noise(6, 5), RNG).shape == (1, 6, 5)
