"""A slot's bytes as a batch: tensors on it, values from its tail, and the structure around them."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

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

#: Called with the slot's bytes and the tail's values.
Leaf = Callable[[Bytes, list[Any]], Any]
#: Called with the leaves, in order.
Assemble = Callable[[Iterator[Any]], Any]

#: Distinct layouts kept in compiled form.
_LAYOUTS = 256


class Recipe(NamedTuple):
    """How a batch is put together: its leaves (tensors, values), and the structure around them."""

    leaves: tuple[Leaf, ...]
    assemble: Assemble
    #: Containers, keys and kinds of leaves, without shapes: batches of one structure can be joined.
    structure: object


def build(base: Bytes, announce: Announce, output: str) -> Any:
    """The batch that lies in ``base`` (the announced slot's bytes, or a copy of them).

    ``output``: "torch" for tensors, "numpy" for arrays. Each tensor has a storage of its own that
    keeps ``base`` alive.

    Raises: ProtocolError where the layout does not fit the slot; TypeError where a dtype has no
    numpy equivalent.
    """
    recipe, leaves = open_slot(base, announce, output)
    return recipe.assemble(iter(leaves))


def open_slot(base: Bytes, announce: Announce, output: str) -> tuple[Recipe, list[Any]]:
    """The leaves of the batch in ``base``, and how to put them together. Raises as ``build``."""
    values: list[Any] = []
    if announce.tail_bytes:
        tail = base[announce.tail_offset : announce.tail_offset + announce.tail_bytes]
        values = decode_value(tail.tobytes())
    recipe = _recipe(announce.layout, output)
    try:
        return recipe, [leaf(base, values) for leaf in recipe.leaves]
    except IndexError as error:
        raise ProtocolError(f"the layout names more than {len(values)} values: {error}") from None


@lru_cache(_LAYOUTS)
def _recipe(layout: bytes, output: str) -> Recipe:
    leaves: list[Leaf] = []
    root = decode_layout(layout)
    assemble = _compile(root, output, leaves)
    return Recipe(tuple(leaves), assemble, _structure(root))


def _structure(node: Node) -> object:
    match node:
        case Tensor():
            return node.dtype, node.is_array
        case Value():
            return "value"
        case Items():
            return node.class_name, tuple(map(_structure, node.children))
        case Entries():
            return node.class_name, tuple(node.keys), tuple(map(_structure, node.children))
        case Fields():
            return node.class_name, node.names, tuple(map(_structure, node.children))


def _compile(node: Node, output: str, leaves: list[Leaf]) -> Assemble:
    match node:
        case Tensor():
            leaves.append(_leaf(node, output))
            return next
        case Value(position):
            leaves.append(lambda _base, values: values[position])
            return next
        case Items():
            return _sequence(node, output, leaves)
        case Entries():
            return _mapping(node, output, leaves)
        case Fields():
            return _record(node, output, leaves)


def _sequence(node: Items, output: str, leaves: list[Leaf]) -> Assemble:
    children = [_compile(child, output, leaves) for child in node.children]
    kind = {"list": list, "tuple": tuple}.get(node.class_name) or _imported(node.class_name) or list
    if kind is list:
        return lambda made: [child(made) for child in children]
    return lambda made: kind([child(made) for child in children])


def _mapping(node: Entries, output: str, leaves: list[Leaf]) -> Assemble:
    pairs = [
        (key, _compile(child, output, leaves))
        for key, child in zip(node.keys, node.children, strict=True)
    ]
    kind = dict if node.class_name == "dict" else _imported(node.class_name) or dict
    if kind is dict:
        return lambda made: {key: child(made) for key, child in pairs}

    def build_mapping(made: Iterator[Any]) -> Any:
        plain = {key: child(made) for key, child in pairs}
        try:
            return kind(plain)
        except TypeError:  # made in another way, as defaultdict is: torch gives a dict too
            return plain

    return build_mapping


def _record(node: Fields, output: str, leaves: list[Leaf]) -> Assemble:
    children = [_compile(child, output, leaves) for child in node.children]
    kind = _imported(node.class_name) or _plain_record(node)
    names = node.names
    if not node.is_dataclass:
        return lambda made: kind(*[child(made) for child in children])

    def build_dataclass(made: Iterator[Any]) -> Any:
        instance = object.__new__(kind)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(instance, name, child(made))
        return instance

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
        return lambda _base, _values: torch.empty(shape, dtype=dtype)
    end = offset + count * dtype.itemsize

    def whole(base: Bytes, _values: list[Any]) -> torch.Tensor:
        _check(base, end)
        flat = torch.frombuffer(base, dtype=dtype, count=count, offset=offset)
        return flat.view(shape) if strides is None else flat.as_strided(shape, strides)

    return whole


def _array(node: Tensor, dtype: np.dtype[Any]) -> Leaf:
    count = extent(node.shape, node.strides)
    end = node.offset + count * dtype.itemsize
    strides = None if node.strides is None else tuple(s * dtype.itemsize for s in node.strides)

    def whole(base: Bytes, _values: list[Any]) -> np.ndarray[Any, Any]:
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
