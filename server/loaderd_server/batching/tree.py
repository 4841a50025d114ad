"""A batch that user code has made (a collate, batch_load): its tree, each tensor copied once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from loaderd_protocol.layout import Entries, Fields, Items, Node
from loaderd_protocol.values import is_value
from loaderd_server.batching.placing import Placement


def plan_tree(batch: Any, placement: Placement, path: str = "batch") -> Node:
    """Plans a whole batch.

    A part without tensors becomes one value, so that layouts stay equal from batch to batch.
    Raises: EncodingError naming place and type of what cannot travel.
    """
    if isinstance(batch, torch.Tensor):
        return placement.tensor(batch, path)
    if isinstance(batch, np.ndarray):
        return placement.array(batch, path)
    if is_value(batch):
        return placement.value(batch, path)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return _fields(batch, batch._fields, placement, path)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        names = tuple(field.name for field in dataclasses.fields(batch))
        return _fields(batch, names, placement, path)
    if isinstance(batch, Mapping):
        return _entries(batch, placement, path)
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes | bytearray):
        children = [plan_tree(c, placement, f"{path}[{i}]") for i, c in enumerate(batch)]
        return Items(class_name(batch, (list, tuple)), tuple(children))
    return placement.value(batch, path)


def class_name(item: Any, plain: tuple[type, ...]) -> str:
    """How a layout names a container's class."""
    kind = type(item)
    return kind.__name__ if kind in plain else f"{kind.__module__}:{kind.__qualname__}"


def _fields(record: Any, names: tuple[str, ...], placement: Placement, path: str) -> Fields:
    children = [plan_tree(getattr(record, name), placement, f"{path}.{name}") for name in names]
    is_dataclass = not isinstance(record, tuple)
    return Fields(class_name(record, ()), is_dataclass, names, tuple(children))


def _entries(mapping: Mapping[Any, Any], placement: Placement, path: str) -> Entries:
    for key in mapping:
        if not is_value(key):
            placement.value(key, f"a key of {path}")
    children = [plan_tree(value, placement, f"{path}[{key!r}]") for key, value in mapping.items()]
    return Entries(class_name(mapping, (dict,)), tuple(mapping), tuple(children))
