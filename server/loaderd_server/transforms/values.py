"""Transforms of an image's values and memory layout: normalize, to_chw."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from loaderd_server.transforms.images import CV2_DTYPES, Image, ImageTransform

Floats = npt.NDArray[np.float32]


class Normalize(ImageTransform):
    """``(image - mean) / std`` by channel, as float32.

    ``mean`` and ``std`` are in units of 0 to 1, as is the custom: integers are divided by the
    largest value of their type (255 for uint8) first, floats are taken as they are. One number
    holds for all channels. Comes before ``to_chw``.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self._mean = _vector(mean, "mean")
        self._std = _vector(std, "std")
        if np.any(self._std <= 0):
            raise ValueError(f"std of normalize is {std!r}; each is above 0")
        if len(self._mean) != len(self._std) and 1 not in (len(self._mean), len(self._std)):
            raise ValueError(
                f"normalize has {len(self._mean)} means and {len(self._std)} stds; "
                f"it takes one of each for every channel, or one for all"
            )
        self._rows: tuple[tuple[object, ...], Floats, Floats] | None = None

    def apply(self, image: Image, rng: np.random.Generator) -> Image:
        """The image as float32."""
        scale, bias = self._for_rows(image)
        rows: Floats = image.reshape(image.shape[0], -1).astype(np.float32)
        rows *= scale
        rows += bias
        return rows.reshape(image.shape)

    def _for_rows(self, image: Image) -> tuple[Floats, Floats]:
        """Scale and bias repeated to an image row: broadcasting over 3 channels is 7 times slower."""
        channels = 1 if image.ndim == 2 else image.shape[2]
        key = (image.shape[1], channels, image.dtype)
        if self._rows is None or self._rows[0] != key:
            scale, bias = self._by_channel(image, channels)
            columns = image.shape[1]
            self._rows = (key, np.tile(scale, columns), np.tile(bias, columns))
        return self._rows[1], self._rows[2]

    def _by_channel(self, image: Image, channels: int) -> tuple[Floats, Floats]:
        given = max(len(self._mean), len(self._std))
        if given not in (1, channels):
            first = " (to_chw comes after normalize)" if image.shape[0] == given else ""
            raise ValueError(
                f"normalize has {given} channels; this image of shape {image.shape} has "
                f"{channels}{first}"
            )
        whole = np.issubdtype(image.dtype, np.integer)
        largest = float(np.iinfo(image.dtype).max) if whole else 1.0
        ones = np.ones(channels)
        scale = ones / (self._std * largest)
        bias = -ones * self._mean / self._std
        return scale.astype(np.float32), bias.astype(np.float32)


class ToChw(ImageTransform):
    """(height, width, channels) to contiguous (channels, height, width); gray gets one channel."""

    def apply(self, image: Image, rng: np.random.Generator) -> Image:
        """The image with its channels first."""
        if image.ndim == 2:
            return np.ascontiguousarray(image[None])
        if image.dtype not in CV2_DTYPES or not 2 <= image.shape[2] <= 4:
            return np.ascontiguousarray(image.transpose(2, 0, 1))
        planes = np.empty((image.shape[2], *image.shape[:2]), image.dtype)
        cv2.split(image, list(planes))
        return planes


def _vector(values: float | Sequence[float], what: str) -> npt.NDArray[np.float64]:
    vector = np.atleast_1d(np.asarray(values, np.float64))
    if vector.ndim != 1 or not vector.size or not np.all(np.isfinite(vector)):
        raise ValueError(
            f"{what} of normalize is {values!r}; it is a number or one for each channel"
        )
    return vector
