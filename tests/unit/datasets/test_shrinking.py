"""Images with a bounded short side: torchvision's sizes, the mean of areas, no enlarging."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from tests.unit.datasets.test_images import jpeg, picture

from loaderd_server.datasets.images import decode
from loaderd_server.datasets.shrinking import with_short_side_within


@pytest.mark.parametrize(
    ("shape", "result"),
    [
        ((40, 60), (20, 30)),
        ((60, 41), (29, 20)),
        ((20, 900), (20, 900)),
        ((21, 22), (20, 20)),
        ((19, 50), (19, 50)),
        ((40, 4000), (20, 2000)),
    ],
)
def test_the_short_side_is_bounded_and_the_ratio_kept(
    shape: tuple[int, int], result: tuple[int, int]
) -> None:
    assert with_short_side_within(picture(*shape), 20).shape == (*result, 3)


def test_a_pixel_is_the_mean_of_its_area() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    means = image.reshape(10, 4, 15, 4, 3).mean(axis=(1, 3))
    assert abs(with_short_side_within(image, 10) - means).max() <= 0.5


def test_what_is_small_enough_is_passed_on() -> None:
    image = picture()
    assert with_short_side_within(image, 40) is image


def test_a_jpeg_is_decoded_no_larger_than_needed_and_never_smaller() -> None:
    data = jpeg(Image.fromarray(picture(400, 600)))
    assert decode(data, short_side=90).shape == (90, 135, 3)
    np.testing.assert_array_equal(
        decode(data, short_side=90), with_short_side_within(decode(data, min_side=90), 90)
    )
    # More to start from, for a better picture of the same size.
    np.testing.assert_array_equal(
        decode(data, min_side=400, short_side=90), with_short_side_within(decode(data), 90)
    )
    assert decode(data, min_side=10, short_side=90).shape == (90, 135, 3)
