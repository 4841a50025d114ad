"""Transforms of an image's size and place: resize, crops, flip."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np

from loaderd_server.transforms.images import (
    CV2_DTYPES,
    Image,
    ImageTransform,
    interpolation_of,
    resized,
    size_pair,
    with_short_side,
)

#: Tries of random_resized_crop before it settles for the centre; torchvision's number.
_TRIES = 10


class Resize(ImageTransform):
    """Resizes: a number is the new short side (the other keeps the ratio), a pair the exact size.

    ``size``: pixels, or [height, width]. ``interpolation``: linear, area, nearest or cubic.
    """

    def __init__(self, size: int | Sequence[int], interpolation: str = "linear") -> None:
        self._height, self._width = size_pair(size, "size of resize")  # type: ignore[arg-type]
        self._short = size if isinstance(size, int) else None
        self._interpolation = interpolation_of(interpolation)

    def apply(self, image: Image, rng: np.random.Generator) -> Image:
        """The resized image."""
        height, width = self._height, self._width
        if self._short is not None:
            height, width = with_short_side(image.shape[0], image.shape[1], self._short)
        return resized(image, height, width, self._interpolation)


class CenterCrop(ImageTransform):
    """Cuts out the middle; where the image is smaller, it is padded with zeros around.

    ``size``: pixels of both sides, or [height, width].
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self._height, self._width = size_pair(size, "size of center_crop")  # type: ignore[arg-type]

    def apply(self, image: Image, rng: np.random.Generator) -> Image:
        """A view on the middle of the image, or a padded copy."""
        image = self._padded(image)
        # round() of a half goes to the even number, here as in torchvision.
        top = round((image.shape[0] - self._height) / 2.0)
        left = round((image.shape[1] - self._width) / 2.0)
        return image[top : top + self._height, left : left + self._width]

    def _padded(self, image: Image) -> Image:
        missing_y = max(0, self._height - image.shape[0])
        missing_x = max(0, self._width - image.shape[1])
        if not missing_y and not missing_x:
            return image
        around = [
            (missing_y // 2, missing_y - missing_y // 2),
            (missing_x // 2, missing_x - missing_x // 2),
            (0, 0),
        ]
        return np.pad(image, around[: image.ndim])


class RandomResizedCrop(ImageTransform):
    """Cuts out a part of random area and aspect ratio and resizes it, as torchvision's.

    ``size``: pixels of both sides, or [height, width]. ``scale``: bounds of the part's area as a
    share of the image's. ``ratio``: bounds of width / height, drawn evenly on a log scale. Where
    ten draws do not fit, the middle with the nearest ratio is taken. Draws 22 numbers of the
    generator, whatever the image.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str = "linear",
    ) -> None:
        self._height, self._width = size_pair(size, "size of random_resized_crop")  # type: ignore[arg-type]
        self._scale = _bounds(scale, "scale")
        low, high = _bounds(ratio, "ratio")
        self._ratio = (low, high)
        self._log_ratio = (math.log(low), math.log(high))
        self._interpolation = interpolation_of(interpolation)

    def apply(self, image: Image, rng: np.random.Generator) -> Image:
        """The part, resized."""
        top, left, height, width = self.box(image.shape[0], image.shape[1], rng)
        part = image[top : top + height, left : left + width]
        if not image.flags.writeable:
            # It lies in the sample cache, so in none of the processor's: a copy of the part (28 us)
            # streams from memory as the resize, at 72 us instead of 112 then, does not.
            part = part.copy()
        return resized(part, self._height, self._width, self._interpolation)

    def box(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Top, left, height and width of the part, for an image of this size."""
        draws = rng.random(2 * _TRIES + 2).tolist()
        found = self._fitting(height, width, draws)
        if found is None:
            return self._middle(height, width)
        part_height, part_width = found
        top = int(draws[-2] * (height - part_height + 1))
        left = int(draws[-1] * (width - part_width + 1))
        return top, left, part_height, part_width

    def _fitting(self, height: int, width: int, draws: list[float]) -> tuple[int, int] | None:
        area = height * width
        low, high = self._scale
        log_low, log_high = self._log_ratio
        for attempt in range(0, 2 * _TRIES, 2):
            target = area * (low + (high - low) * draws[attempt])
            ratio = math.exp(log_low + (log_high - log_low) * draws[attempt + 1])
            part_width = round(math.sqrt(target * ratio))
            part_height = round(math.sqrt(target / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                return part_height, part_width
        return None

    def _middle(self, height: int, width: int) -> tuple[int, int, int, int]:
        low, high = self._ratio
        part_height, part_width = height, width
        if width / height < low:
            part_height = max(1, min(height, round(width / low)))
        elif width / height > high:
            part_width = max(1, min(width, round(height * high)))
        top, left = (height - part_height) // 2, (width - part_width) // 2
        return top, left, part_height, part_width


class HorizontalFlip(ImageTransform):
    """Mirrors left and right with probability ``p``. Draws one number of the generator."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p of horizontal_flip is {p}; it is a probability from 0 to 1")
        self._p = p

    def apply(self, image: Image, rng: np.random.Generator) -> Image:
        """The image itself, or its mirror image."""
        if rng.random() >= self._p:
            return image
        if image.dtype not in CV2_DTYPES:
            return image[:, ::-1]
        # A view of negative stride costs nothing here but 25 times as much where it is copied
        # into the batch (166 us against 7 for 224x224x3 uint8).
        mirrored: Image = cv2.flip(image, 1)
        return mirrored.reshape(image.shape)


def _bounds(pair: Sequence[float], what: str) -> tuple[float, float]:
    values = tuple(float(value) for value in pair)
    if len(values) != 2 or not 0.0 < values[0] <= values[1]:
        raise ValueError(
            f"{what} of random_resized_crop is {list(pair)!r}; it is a pair [least, greatest], "
            f"both above 0"
        )
    return values
