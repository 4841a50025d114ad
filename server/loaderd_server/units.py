"""Sizes as people write them: "4GiB", "512MB", or a number of bytes."""

from __future__ import annotations

import re

_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(size: object) -> int:
    """Bytes from an integer or a text with a unit.

    Raises: ValueError naming what was found and what is understood.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{size!r} is no size; write bytes or a unit, such as 512MiB or 4GiB")
    return int(float(match[1]) * factor)


def show_size(size_bytes: int) -> str:
    """A size in the largest unit that keeps it above one: "1.5 GiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes} bytes"
