"""Built-in transforms by the names that a config uses; your own is any "module:callable"."""

from __future__ import annotations

import difflib

from loaderd_server.transforms.geometry import (
    CenterCrop,
    HorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from loaderd_server.transforms.images import ImageTransform
from loaderd_server.transforms.values import Normalize, ToChw

#: Every built-in transform by its name in a config.
BUILT_IN: dict[str, type[ImageTransform]] = {
    "resize": Resize,
    "center_crop": CenterCrop,
    "random_resized_crop": RandomResizedCrop,
    "horizontal_flip": HorizontalFlip,
    "normalize": Normalize,
    "to_chw": ToChw,
}


def resolve(name: str) -> type[ImageTransform]:
    """The class of a built-in transform; it is built with keyword arguments.

    Raises: LookupError naming the nearest name.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    near = difflib.get_close_matches(name, BUILT_IN, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise LookupError(
        f"there is no built-in transform {name!r}; {hint}There are {', '.join(BUILT_IN)}. "
        f"Your own is named by its target, 'package.module:callable'."
    )


__all__ = [
    "BUILT_IN",
    "CenterCrop",
    "HorizontalFlip",
    "ImageTransform",
    "Normalize",
    "RandomResizedCrop",
    "Resize",
    "ToChw",
    "resolve",
]
