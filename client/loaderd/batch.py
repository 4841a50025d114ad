"""A slot's bytes as a batch: tensors on it, values from its tail, and the structure around them."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from loaderd.views import Bytes
from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.layout import (
    Entries,
    Fields,
    Items,
    Node,
    Tensor,
    Value,
    decode_layout,
    extent,
)
from loaderd_protocol.messages import Announce
from loaderd_protocol.values import decode_value

Leaf = Callable[[Bytes], Any]
#: Called with the slot's bytes and the tail's values.
Builder = Callable[[Bytes, list[Any]], Any]

#: Distinct layouts kept in compiled form.
_LAYOUTS = 256


def build(base: Bytes, announce: Announce, output: str) -> Any:
    """The batch that lies in ``base`` (the announced slot's bytes, or a copy of them).

    ``output``: "torch" for tensors, "numpy" for arrays. Each tensor has a storage of its own that
    keeps ``base`` alive.

    Raises: ProtocolError where the layout does not fit the slot; TypeError where a dtype has no
    numpy equivalent.
    """
    values: list[Any] = []
    if announce.tail_bytes:
        tail = base[announce.tail_offset : announce.tail_offset + announce.tail_bytes]
        values = decode_value(tail.tobytes())
    try:
        return _builder(announce.layout, output)(base, values)
    except IndexError as error:
        raise ProtocolError(f"the layout names more than {len(values)} values: {error}") from None


@lru_cache(_LAYOUTS)
def _builder(layout: bytes, output: str) -> Builder:
    return _compile(decode_layout(layout), output)


def _compile(node: Node, output: str) -> Builder:
    match node:
        case Tensor():
            leaf = _leaf(node, output)
            return lambda base, _values: leaf(base)
        case Value(position):
            return lambda _base, values: values[position]
        case Items():
            return _sequence(node, output)
        case Entries():
            return _mapping(node, output)
        case Fields():
            return _record(node, output)


def _sequence(node: Items, output: str) -> Builder:
    children = [_compile(child, output) for child in node.children]
    kind = {"list": list, "tuple": tuple}.get(node.class_name) or _imported(node.class_name) or list
    if kind is list:
        return lambda base, values: [child(base, values) for child in children]
    return lambda base, values: kind([child(base, values) for child in children])


def _mapping(node: Entries, output: str) -> Builder:
    pairs = [
        (key, _compile(child, output)) for key, child in zip(node.keys, node.children, strict=True)
    ]
    kind = dict if node.class_name == "dict" else _imported(node.class_name) or dict
    if kind is dict:
        return lambda base, values: {key: child(base, values) for key, child in pairs}
    return lambda base, values: kind({key: child(base, values) for key, child in pairs})


def _record(node: Fields, output: str) -> Builder:
    children = [_compile(child, output) for child in node.children]
    kind = _imported(node.class_name) or _plain_record(node)
    names = node.names
    if not node.is_dataclass:
        return lambda base, values: kind(*[child(base, values) for child in children])

    def build_dataclass(base: Bytes, values: list[Any]) -> Any:
        made = object.__new__(kind)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(made, name, child(base, values))
        return made

    return build_dataclass


def _imported(class_name: str) -> Any:
    """The class "module:qualname" if this process has imported its module, else None."""
    module, _, path = class_name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _plain_record(node: Fields) -> Any:
    name = node.class_name.rpartition(":")[2].rpartition(".")[2]
    if node.is_dataclass:
        return dataclasses.make_dataclass(name, node.names)
    return collections.namedtuple(name, node.names)


def _leaf(node: Tensor, output: str) -> Leaf:
    if node.is_array:
        return _array(node, np.dtype(node.dtype))
    if output == "numpy":
        return _array(node, _numpy_dtype(node.dtype))
    return _tensor(node)


def _tensor(node: Tensor) -> Leaf:
    dtype = getattr(torch, node.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ProtocolError(f"this torch ({torch.__version__}) has no dtype {node.dtype!r}")
    shape, strides, offset = node.shape, node.strides, node.offset
    count = extent(shape, strides)
    if count == 0:
        return lambda _base: torch.empty(shape, dtype=dtype)
    end = offset + count * dtype.itemsize

    def whole(base: Bytes) -> torch.Tensor:
        _check(base, end)
        flat = torch.frombuffer(base, dtype=dtype, count=count, offset=offset)
        return flat.view(shape) if strides is None else flat.as_strided(shape, strides)

    return whole


def _array(node: Tensor, dtype: np.dtype[Any]) -> Leaf:
    count = extent(node.shape, node.strides)
    end = node.offset + count * dtype.itemsize
    strides = None if node.strides is None else tuple(s * dtype.itemsize for s in node.strides)

    def whole(base: Bytes) -> np.ndarray[Any, Any]:
        _check(base, end)
        flat = base[node.offset : end].view(dtype)
        if strides is None:
            return flat.reshape(node.shape)
        return np.lib.stride_tricks.as_strided(flat, node.shape, strides)

    return whole


def _check(base: Bytes, end: int) -> None:
    if end > len(base):
        raise ProtocolError(f"a tensor ends at byte {end} of a batch of {len(base)} bytes")


def _numpy_dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype({"bool": "?"}.get(name, name))
    except TypeError:
        raise TypeError(f"numpy has no {name}: use output='torch' for this stream") from None
