"""A dataset's own ``state_dict`` as bytes and back: plain data, tensors and arrays; never pickle.

A tree of tagged nodes, so that nothing of a user's can be taken for a tensor:
``["v", value]``, ``["l" | "u", [node]]`` (list, tuple), ``["d", [[key, node]]]``, ``["a" | "t", dtype,
shape, bytes]`` (numpy array, torch tensor). The root is ``[holder, node]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch

from loaderd_protocol.errors import EncodingError, ProtocolError
from loaderd_protocol.values import decode_value, encode_value, is_value

#: A state goes with every batch: through the worker's line, and into the core.
LIMIT_BYTES = 64 * 1024
_MAX_DEPTH = 60


class Holder(Enum):
    """Whose ``state_dict`` it is; torchdata asks the iterator first, too."""

    ITERATOR = "iterator"
    DATASET = "dataset"


@dataclass(frozen=True, slots=True)
class IteratorState:
    """A state and whose it is."""

    holder: Holder
    state: Any


def holder_of(dataset: Any, iterator: Any) -> Holder | None:
    """Who can save and load the state, if anyone."""
    if _is_stateful(iterator):
        return Holder.ITERATOR
    return Holder.DATASET if _is_stateful(dataset) else None


def encode_state(state: IteratorState) -> bytes:
    """The state as bytes.

    Raises: EncodingError naming what cannot be carried, or the size above LIMIT_BYTES.
    """
    data = encode_value([state.holder.value, _node(state.state, "state", 0)])
    if len(data) > LIMIT_BYTES:
        raise EncodingError(f"it takes {len(data)} bytes, more than {LIMIT_BYTES}")
    return data


def decode_state(data: bytes) -> IteratorState:
    """The state that ``encode_state`` made bytes of.

    Raises: ProtocolError where they are no such bytes.
    """
    root = decode_value(data)
    try:
        holder, node = root
        return IteratorState(Holder(holder), _item(node))
    except Exception as error:  # noqa: BLE001 - numpy, torch and indexing raise many kinds on garbage
        raise ProtocolError(f"{len(data)} bytes are not a dataset's state: {error}") from None


def _is_stateful(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(
        getattr(thing, "load_state_dict", None)
    )


def _node(item: Any, path: str, depth: int) -> list[Any]:
    if is_value(item):
        return ["v", item]
    if depth > _MAX_DEPTH:
        raise EncodingError(f"{path} is nested too deep")
    kind = type(item)
    if kind in (list, tuple):
        return [
            "l" if kind is list else "u",
            [_node(child, f"{path}[{i}]", depth + 1) for i, child in enumerate(item)],
        ]
    if kind is dict and all(map(is_value, item)):
        pairs = item.items()
        return ["d", [[key, _node(child, f"{path}[{key!r}]", depth + 1)] for key, child in pairs]]
    if kind is np.ndarray and not item.dtype.hasobject and item.dtype.names is None:
        return ["a", item.dtype.str, list(item.shape), item.tobytes()]
    if kind is torch.Tensor and item.layout is torch.strided and item.device.type == "cpu":
        plain = item.detach().resolve_conj().resolve_neg().contiguous()
        name = str(plain.dtype).removeprefix("torch.")
        return ["t", name, list(plain.shape), plain.view(-1).view(torch.uint8).numpy().tobytes()]
    raise EncodingError(f"{path} is a {kind.__module__}.{kind.__qualname__}")


def _item(node: Any) -> Any:
    kind, *rest = node
    match kind:
        case "v":
            return rest[0]
        case "l" | "u":
            items = [_item(child) for child in rest[0]]
            return items if kind == "l" else tuple(items)
        case "d":
            return {key: _item(child) for key, child in rest[0]}
        case "a":
            dtype, shape, data = rest
            return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()
        case "t":
            return _tensor(*rest)
    raise ValueError(f"unknown node {kind!r}")


def _tensor(name: str, shape: list[int], data: bytes) -> torch.Tensor:
    dtype = getattr(torch, name)
    # torch.frombuffer takes no empty buffer.
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)
