"""Resize, crops and flip: sizes, the same bytes for the same key, torchvision's distribution."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import pytest

from loaderd_server.transforms import CenterCrop, HorizontalFlip, RandomResizedCrop, Resize


def rng(key: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key))


def noise(*shape: int, dtype: str = "u1") -> np.ndarray:
    return rng(99).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "size", "result"),
    [
        ((40, 60, 3), 20, (20, 30, 3)),
        ((60, 40, 3), 20, (30, 20, 3)),
        ((40, 60, 3), [7, 9], (7, 9, 3)),
        ((40, 60), 80, (80, 120)),
        ((40, 60, 1), 20, (20, 30, 1)),
        ((1, 1, 3), 5, (5, 5, 3)),
        ((1, 999), 1, (1, 999)),
        ((33, 47, 4), 10, (10, 14, 4)),
    ],
)
def test_resize_gives_the_size(shape: Any, size: Any, result: Any) -> None:
    assert Resize(size)(noise(*shape), rng()).shape == result


@pytest.mark.parametrize("name", ["nearest", "linear", "area", "cubic"])
def test_resize_keeps_flat_colour_in_every_interpolation(name: str) -> None:
    image = np.full((30, 40, 3), 77, np.uint8)
    assert (Resize(17, interpolation=name)(image, rng()) == 77).all()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
def test_resize_keeps_the_dtype(dtype: str) -> None:
    assert Resize(5)(noise(9, 9, 3, dtype=dtype), rng()).dtype == dtype


def test_an_image_that_has_the_size_is_passed_on() -> None:
    image = noise(8, 8, 3)
    assert Resize(8)(image, rng()) is image


def test_a_dtype_without_resize_is_named() -> None:
    with pytest.raises(TypeError, match=r"image of int64 cannot be resized; convert .* float32"):
        Resize(5)(noise(9, 9, dtype="int64"), rng())


def test_read_only_and_strided_images_are_taken() -> None:
    image = noise(30, 40, 3)
    image.flags.writeable = False
    for view in (image, image[::-1], image[2:20, 5:30]):
        assert Resize(10)(view, rng()).shape[2] == 3
        assert RandomResizedCrop(10)(view, rng()).shape == (10, 10, 3)
        np.testing.assert_array_equal(HorizontalFlip(1.0)(view, rng()), view[:, ::-1])


def test_center_crop_is_a_view_on_the_middle() -> None:
    image = noise(10, 13, 3)
    part = CenterCrop([4, 6])(image, rng())
    np.testing.assert_array_equal(part, image[3:7, 4:10])
    assert np.shares_memory(part, image)


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 20, 3), (20, 3), (5, 5)])
def test_center_crop_pads_what_is_smaller(shape: Any) -> None:
    image = np.full(shape, 9, np.uint8)
    part = CenterCrop(8)(image, rng())
    assert part.shape[:2] == (8, 8)
    assert (part == 9).sum() == min(8, shape[0]) * min(8, shape[1]) * math.prod(shape[2:])


@pytest.mark.parametrize("shape", [(375, 500, 3), (1, 1, 3), (2, 1000, 3), (1000, 2), (7, 7, 1)])
def test_random_resized_crop_gives_the_size(shape: Any) -> None:
    for key in range(50):
        part = RandomResizedCrop([24, 31])(noise(*shape), rng(key))
        assert part.shape == (24, 31, *shape[2:])


def test_the_same_key_gives_the_same_bytes_and_others_differ() -> None:
    image = noise(100, 120, 3)
    crop = RandomResizedCrop(32)
    first = crop(image, rng(5))
    np.testing.assert_array_equal(first, crop(image, rng(5)))
    np.testing.assert_array_equal(first, RandomResizedCrop(32)(image, rng(5)))
    assert not np.array_equal(first, crop(image, rng(6)))


def test_the_part_is_what_is_resized() -> None:
    image = noise(90, 120, 3)
    top, left, height, width = RandomResizedCrop(16).box(90, 120, rng(3))
    part = np.ascontiguousarray(image[top : top + height, left : left + width])
    np.testing.assert_array_equal(RandomResizedCrop(16)(image, rng(3)), cv2.resize(part, (16, 16)))


def test_boxes_are_distributed_as_torchvisions() -> None:
    crop = RandomResizedCrop(224)
    boxes = np.array([crop.box(1000, 1000, rng(key)) for key in range(4000)])
    top, left, height, width = boxes.T
    assert (boxes >= 0).all()
    assert (top + height <= 1000).all()
    assert (left + width <= 1000).all()
    share = height * width / 1e6
    assert share.min() > 0.079
    # Uniform in 0.08..1, but parts that do not fit the square image are drawn again.
    areas, logs = rng(1).uniform(0.08, 1, 10**5), rng(2).uniform(-1, 1, 10**5) * math.log(4 / 3)
    fitting = areas[areas * np.exp(np.abs(logs)) <= 1]
    assert abs(share.mean() - fitting.mean()) < 0.02
    assert abs(share.std() - fitting.std()) < 0.02
    ratio = np.log(width / height)
    assert abs(ratio).max() < math.log(4 / 3) + 0.01
    assert abs(ratio.mean()) < 0.02
    assert abs(ratio.std() - 2 * math.log(4 / 3) / math.sqrt(12)) < 0.03
    where = top / np.maximum(1, 1000 - height)
    assert abs(where.mean() - 0.5) < 0.03
    assert abs(where.std() - 1 / math.sqrt(12)) < 0.03


def test_where_no_draw_fits_the_middle_with_the_nearest_ratio_is_taken() -> None:
    crop = RandomResizedCrop(8, scale=(0.9, 1.0))
    for key in range(20):
        assert crop.box(100, 1000, rng(key)) == (0, 433, 100, 133)
        assert crop.box(1000, 100, rng(key)) == (433, 0, 133, 100)


def test_transforms_draw_a_fixed_number_of_times() -> None:
    for transform, draws in ((RandomResizedCrop(8), 22), (HorizontalFlip(), 1)):
        for shape in ((1, 1000, 3), (300, 300, 3)):
            used, counted = rng(1), rng(1)
            transform(noise(*shape), used)
            counted.random(draws)
            assert used.random() == counted.random()


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(5, 7, 3), (5, 7, 1), (5, 7), (5, 7, 6)])
def test_flip_mirrors(shape: Any, dtype: str) -> None:
    image = noise(*shape, dtype=dtype)
    np.testing.assert_array_equal(HorizontalFlip(1.0)(image, rng()), image[:, ::-1])
    assert HorizontalFlip(0.0)(image, rng()) is image


def test_flip_mirrors_as_often_as_it_says() -> None:
    image = noise(2, 3, 3)
    flips = [HorizontalFlip(0.3)(image, rng(key)) is not image for key in range(2000)]
    assert abs(np.mean(flips) - 0.3) < 0.04


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Resize(0), "size of resize is 0; it is a number of pixels or a pair"),
        (lambda: Resize([3, -1]), r"size of resize is \[3, -1\]"),
        (lambda: CenterCrop([1, 2, 3]), r"size of center_crop is \[1, 2, 3\]"),
        (lambda: Resize(3, interpolation="lanczos"), "'lanczos'; it is one of nearest, linear"),
        (lambda: RandomResizedCrop(3, scale=[0, 1]), r"scale of random_resized_crop is \[0, 1\]"),
        (lambda: RandomResizedCrop(3, ratio=[2, 1]), r"ratio of random_resized_crop is \[2, 1\]"),
        (lambda: HorizontalFlip(p=1.5), "p of horizontal_flip is 1.5; it is a probability"),
    ],
)
def test_bad_arguments_are_refused(build: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        build()
