"""Images whose short side is bounded: smaller to keep and to copy, large enough for random crops."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loaderd_server.transforms.images import INTERPOLATIONS, resized, with_short_side

Pixels = npt.NDArray[np.uint8]


def with_short_side_within(pixels: Pixels, short_side: int) -> Pixels:
    """The image with a short side of at most so many pixels: resized, or as it is, never enlarged.

    The long side keeps the ratio. Every pixel is the mean of the area it stands for (cv2's
    INTER_AREA): nothing aliases, whatever the ratio.
    """
    height, width = pixels.shape[:2]
    if min(height, width) <= short_side:
        return pixels
    return resized(pixels, *with_short_side(height, width, short_side), INTERPOLATIONS["area"])
