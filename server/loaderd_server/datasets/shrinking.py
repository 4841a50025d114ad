"""Images whose short side is bounded: smaller to keep and to copy, large enough for random crops."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

# Workers are single-threaded; a pool of threads would also make a fork of the zygote unsafe.
cv2.setNumThreads(1)

Pixels = npt.NDArray[np.uint8]


def with_short_side_within(pixels: Pixels, short_side: int) -> Pixels:
    """The image with a short side of at most so many pixels: resized, or as it is, never enlarged.

    The long side keeps the ratio, rounded down as torchvision's ``Resize`` does. Every pixel is
    the mean of the area it stands for (cv2's INTER_AREA): nothing aliases, whatever the ratio.
    """
    height, width = pixels.shape[:2]
    shorter = min(height, width)
    if shorter <= short_side:
        return pixels
    longer = max(short_side, int(short_side * max(height, width) / shorter))
    size = (short_side, longer) if width <= height else (longer, short_side)
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)
