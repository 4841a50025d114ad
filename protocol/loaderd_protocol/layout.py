"""Where each tensor of a batch lies in its slot, and the structure around the tensors.

The only file that knows a byte offset. A slot holds the tensors at 64-byte-aligned offsets and after
them the tail: one msgpack list of the values that are no tensors, which ``Value`` nodes index. The
layout itself travels in the announcement; equal batches have equal layouts, so a trainer decodes it once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from loaderd_protocol.errors import ProtocolError
from loaderd_protocol.values import decode_value, encode_value

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense tensor or numpy array.

    ``dtype``: torch's name without "torch." for a tensor ("bfloat16"), numpy's ``dtype.str`` for an
    array ("<f4"). ``strides`` count elements, None means C-contiguous. ``offset`` counts bytes from
    the start of the slot; the tensor takes ``extent * itemsize`` bytes from there.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None = None
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class Value:
    """The ``position``-th value of the tail."""

    position: int


@dataclass(frozen=True, slots=True)
class Items:
    """A list (class_name "list"), a tuple ("tuple") or a sequence class ("module:qualname")."""

    class_name: str
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """A dict (class_name "dict") or a mapping class ("module:qualname")."""

    class_name: str
    keys: tuple[object, ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Fields:
    """A namedtuple (``is_dataclass`` False) or a dataclass, of class "module:qualname"."""

    class_name: str
    is_dataclass: bool
    names: tuple[str, ...]
    children: tuple[Node, ...]


Node = Tensor | Value | Items | Entries | Fields


def align(offset: int) -> int:
    """The least aligned offset that is not before ``offset``."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def extent(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """How many elements lie between a tensor's first and last one, both counted."""
    if strides is None or 0 in shape:
        return math.prod(shape)
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def encode_layout(root: Node) -> bytes:
    """The layout as it travels."""
    return encode_value(_to_plain(root))


def decode_layout(data: bytes) -> Node:
    """The layout that ``encode_layout`` made.

    Raises: ProtocolError where ``data`` is none.
    """
    try:
        return _from_plain(decode_value(data))
    except (TypeError, ValueError, KeyError, IndexError, RecursionError) as error:
        raise ProtocolError(f"{len(data)} bytes are not a layout: {error}") from None


def _to_plain(node: Node) -> list[object]:
    match node:
        case Tensor():
            return ["t", node.dtype, node.shape, node.offset, node.strides, node.is_array]
        case Value():
            return ["v", node.position]
        case Items():
            return ["i", node.class_name, [_to_plain(child) for child in node.children]]
        case Entries():
            children = [_to_plain(child) for child in node.children]
            return ["e", node.class_name, list(node.keys), children]
        case Fields():
            children = [_to_plain(child) for child in node.children]
            return ["f", node.class_name, node.is_dataclass, list(node.names), children]


def _from_plain(plain: list[object]) -> Node:
    match plain:
        case ["t", str(dtype), tuple(shape), int(offset), strides, bool(is_array)]:
            return Tensor(dtype, _sizes(shape), offset, _strides(strides), is_array)
        case ["v", int(position)]:
            return Value(position)
        case ["i", str(name), list(children)]:
            return Items(name, tuple(_from_plain(child) for child in children))
        case ["e", str(name), list(keys), list(children)] if len(keys) == len(children):
            return Entries(name, tuple(keys), tuple(_from_plain(child) for child in children))
        case ["f", str(name), bool(is_dataclass), list(names), list(children)] if len(names) == len(
            children
        ):
            fields = tuple(str(field) for field in names)
            return Fields(name, is_dataclass, fields, tuple(_from_plain(c) for c in children))
    raise ValueError(f"no such node: {str(plain)[:60]}")


def _strides(strides: object) -> tuple[int, ...] | None:
    return None if strides is None else _sizes(strides)


def _sizes(sizes: object) -> tuple[int, ...]:
    if not isinstance(sizes, tuple) or any(type(n) is not int or n < 0 for n in sizes):
        raise ValueError(f"not a shape or strides: {sizes!r}")
    return sizes
