"""Names in a config become classes; samples of every form keep what is no image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from loaderd_server import transforms
from loaderd_server.transforms import BUILT_IN, Resize, resolve


class Pair(NamedTuple):
    image: np.ndarray
    label: int


def rng() -> np.random.Generator:
    return np.random.Generator(np.random.Philox(0))


def test_every_built_in_is_found_by_name() -> None:
    assert list(BUILT_IN) == [
        "resize", "center_crop", "random_resized_crop", "horizontal_flip", "normalize", "to_chw",
    ]  # fmt: skip
    for name, kind in BUILT_IN.items():
        assert resolve(name) is kind
        assert kind.uses_only_given_rng
        assert kind.__name__ in transforms.__all__


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("shape", [(9, 12, 3), (9, 12), (6, 6, 3)])
def test_no_built_in_writes_to_what_it_is_given(name: str, shape: tuple[int, ...]) -> None:
    args: dict[str, dict[str, object]] = {"normalize": {"mean": 0.5, "std": 0.5}, "to_chw": {}}
    own = args.get(name, {"p": 1.0} if name == "horizontal_flip" else {"size": 6})
    assert BUILT_IN[name].keeps_input
    for dtype in (np.uint8, np.float32):
        image = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
        before = image.copy()
        result = BUILT_IN[name](**own)(image, rng())
        np.testing.assert_array_equal(image, before)
        image.flags.writeable = False  # as it lies in the cache
        np.testing.assert_array_equal(BUILT_IN[name](**own)(image, rng()), result)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(
        LookupError, match="no built-in transform 'centre_crop'; did you mean 'cent"
    ):
        resolve("centre_crop")
    with pytest.raises(LookupError, match=r"'xyz'; There are resize, .*package\.module:callable"):
        resolve("xyz")


def test_only_the_image_of_a_sample_changes() -> None:
    image = np.zeros((10, 12, 3), np.uint8)
    halve = Resize([5, 6])
    extra = object()
    assert halve(image, rng()).shape == (5, 6, 3)
    tupled = halve((image, 3, extra), rng())
    assert type(tupled) is tuple
    assert tupled[0].shape == (5, 6, 3)
    assert tupled[1:] == (3, extra)
    listed = halve([image, extra], rng())
    assert type(listed) is list
    assert listed[1] is extra
    named = halve(Pair(image, 4), rng())
    assert isinstance(named, Pair)
    assert named.image.shape == (5, 6, 3)
    mapped = {"label": 1, "image": image}
    assert halve(mapped, rng())["image"].shape == (5, 6, 3)
    assert mapped["image"] is image


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        (5, "Resize finds no image in a sample of type int"),
        ((), "no image in a sample of type tuple"),
        ({"img": 1}, r"type dict with the keys \['img'\]"),
        ((torch.zeros(3, 3), 1), r"Resize takes an image as ndarray, not Tensor; convert it"),
    ],
)
def test_a_sample_without_an_image_is_an_error(sample: object, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Resize(4)(sample, rng())


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4, 5), (0, 4, 3), (4, 0)])
def test_an_array_of_another_shape_is_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"this one has \\({shape[0]},"):
        Resize(4)(np.zeros(shape, np.uint8), rng())
