"""What every image transform shares: finding the image in a sample, and checking it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt

# Workers are single-threaded; a pool of threads would also make a fork of the zygote unsafe.
cv2.setNumThreads(1)

Image = npt.NDArray[Any]
#: What cv2 takes; others go through numpy where that is possible, else are refused.
CV2_DTYPES = frozenset(
    np.dtype(name) for name in ("uint8", "uint16", "int16", "float32", "float64")
)
INTERPOLATIONS = {
    "nearest": cv2.INTER_NEAREST,
    "linear": cv2.INTER_LINEAR,
    "area": cv2.INTER_AREA,
    "cubic": cv2.INTER_CUBIC,
}


class ImageTransform:
    """A transform of a sample's image; what else is in the sample stays as it is.

    The image is the sample itself, the first element of a tuple or list, or the value of ``image``
    in a mapping: an ndarray of shape (height, width) or (height, width, channels). A subclass says
    what becomes of it in ``apply``.
    """

    #: Only ``rng`` is drawn from, so no global generator needs to be seeded for a sample.
    uses_only_given_rng: ClassVar[bool] = True
    #: The sample that is given is never written to, so it may lie in the cache itself.
    keeps_input: ClassVar[bool] = True

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        """The sample with its image transformed; the one given is not changed.

        Raises: TypeError, ValueError.
        """
        if isinstance(sample, np.ndarray):
            return self.apply(checked(sample, self), rng)
        if isinstance(sample, tuple) and sample:
            image = self.apply(checked(sample[0], self), rng)
            # A namedtuple takes its fields one by one.
            return type(sample)(image, *sample[1:]) if hasattr(sample, "_fields") else (
                image, *sample[1:]
            )  # fmt: skip
        if isinstance(sample, list) and sample:
            return [self.apply(checked(sample[0], self), rng), *sample[1:]]
        if isinstance(sample, Mapping) and "image" in sample:
            return {**sample, "image": self.apply(checked(sample["image"], self), rng)}
        raise TypeError(
            f"{type(self).__name__} finds no image in a sample of type "
            f"{type(sample).__name__}{_keys(sample)}; it takes an ndarray, a tuple or list that "
            f"begins with one, or a mapping with the key 'image'"
        )

    def apply(self, image: Image, rng: np.random.Generator) -> Image:
        """The transformed image."""
        raise NotImplementedError


def checked(image: Any, transform: object) -> Image:
    """The image, if it is one.

    Raises: TypeError, ValueError.
    """
    name = type(transform).__name__
    if not isinstance(image, np.ndarray):
        raise TypeError(
            f"{name} takes an image as ndarray, not {type(image).__name__}; convert it in the "
            f"dataset (numpy.asarray for a Pillow image, tensor.numpy() for a tensor)"
        )
    if image.ndim not in (2, 3) or 0 in image.shape:
        raise ValueError(
            f"{name} takes an image of shape (height, width) or (height, width, channels), "
            f"none of them 0; this one has {image.shape}"
        )
    return image


def resized(image: Image, height: int, width: int, interpolation: int) -> Image:
    """The image at this size; where it has it already, as it is.

    Raises: TypeError.
    """
    if image.shape[:2] == (height, width):
        return image
    if image.dtype not in CV2_DTYPES:
        raise TypeError(
            f"an image of {image.dtype} cannot be resized; convert it in the dataset to one of "
            f"{', '.join(sorted(dtype.name for dtype in CV2_DTYPES))}"
        )
    output: Image = cv2.resize(image, (width, height), interpolation=interpolation)
    # cv2 drops a channel axis of one.
    return output.reshape(height, width, *image.shape[2:])


def with_short_side(height: int, width: int, short: int) -> tuple[int, int]:
    """(height, width) with this short side and the same ratio: the long one is rounded down, as torchvision does."""
    if height <= width:
        return short, max(1, int(short * width / height))
    return max(1, int(short * height / width)), short


def interpolation_of(name: str) -> int:
    """cv2's number for an interpolation.

    Raises: ValueError.
    """
    if name not in INTERPOLATIONS:
        raise ValueError(f"interpolation is {name!r}; it is one of {', '.join(INTERPOLATIONS)}")
    return INTERPOLATIONS[name]


def size_pair(size: int | list[int] | tuple[int, int], what: str) -> tuple[int, int]:
    """(height, width) of a size that is one number for both, or a pair.

    Raises: ValueError.
    """
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(not isinstance(side, int) or side < 1 for side in pair):
        raise ValueError(f"{what} is {size!r}; it is a number of pixels or a pair [height, width]")
    return pair[0], pair[1]


def _keys(sample: Any) -> str:
    return f" with the keys {list(sample)}" if isinstance(sample, Mapping) else ""
