"""The reference's own default collate: torch's, beside loaderd's that plans and writes into slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate


def collate(samples: Sequence[Any]) -> Any:
    """A batch by torch's rules and by what loaderd knows beyond them: None, dataclasses, any strides."""
    first = samples[0]
    if first is None or isinstance(first, str | bytes):
        return list(samples)
    if isinstance(first, np.ndarray):
        return default_collate([torch.from_numpy(_native(array)) for array in samples])
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(collate, zip(*samples, strict=True)))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        return _dataclass(samples)
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    if isinstance(first, Sequence):
        return [collate(column) for column in zip(*samples, strict=True)]
    return default_collate(list(samples))


def _native(array: Any) -> Any:
    """C-contiguous and in this machine's byte order, as torch wants it; a copy, so that it is writable."""
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


def _dataclass(samples: Sequence[Any]) -> Any:
    made = object.__new__(type(samples[0]))
    for field in dataclasses.fields(samples[0]):
        column = collate([getattr(sample, field.name) for sample in samples])
        object.__setattr__(made, field.name, column)
    return made
