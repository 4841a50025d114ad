"""What is no tensor, as msgpack: types that msgpack would blur (tuple, big int, numpy scalar) are kept.

Carried exactly: None, bool, int of any size, float, complex, str (lone surrogates too), bytes, list,
tuple, dict with any of these as keys, set, frozenset, and numpy scalars. Ask ``is_value`` before
``encode_value``: msgpack itself would turn a bytearray or memoryview into bytes without a word.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from loaderd_protocol.errors import EncodingError, ProtocolError

_TUPLE, _BIG_INT, _NUMPY_SCALAR, _COMPLEX, _SET, _FROZENSET = range(1, 7)
_PAIR = struct.Struct("<dd")

#: Exact types of the leaves that travel as values.
ATOMS = (bool, int, float, complex, str, bytes, type(None))
#: Nesting that is surely within msgpack's own limit, with ``_depth`` counted from the root.
_MAX_DEPTH = 200


def is_value(item: object, depth: int = 0) -> bool:
    """Whether ``encode_value`` carries this item exactly, with all that is in it."""
    kind = type(item)
    if kind in ATOMS:
        return True
    if isinstance(item, np.generic):
        return not item.dtype.hasobject and item.dtype.names is None
    if depth > _MAX_DEPTH:
        return False
    if kind in (list, tuple, set, frozenset):
        return all(is_value(child, depth + 1) for child in item)  # type: ignore[attr-defined]
    if kind is dict:
        return all(
            is_value(key, depth + 1) and is_value(child, depth + 1)
            for key, child in item.items()  # type: ignore[attr-defined]
        )
    return False


def encode_value(item: object) -> bytes:
    """The msgpack of a value.

    Raises: EncodingError naming the type that cannot be carried.
    """
    try:
        packed = msgpack.packb(
            item, strict_types=True, default=_to_ext, unicode_errors="surrogatepass"
        )
    except (ValueError, RecursionError) as error:
        raise EncodingError(f"{type(item).__name__} cannot travel in a batch: {error}") from None
    assert isinstance(packed, bytes)
    return packed


def decode_value(data: bytes | memoryview) -> Any:
    """The value that ``encode_value`` packed.

    Raises: ProtocolError where ``data`` is not such a value.
    """
    try:
        return msgpack.unpackb(
            data, ext_hook=_from_ext, strict_map_key=False, unicode_errors="surrogatepass"
        )
    except Exception as error:  # noqa: BLE001 - msgpack, struct and numpy raise many kinds on garbage
        raise ProtocolError(f"{len(data)} bytes are not a value: {error}") from None


def _to_ext(item: object) -> msgpack.ExtType:
    if isinstance(item, np.generic):
        return _numpy_scalar(item)
    packer = _PACKERS.get(type(item))
    if packer is None:
        raise EncodingError(
            f"a {type(item).__module__}.{type(item).__qualname__} cannot travel in a batch; "
            f"turn it into tensors, numbers, strings, bytes, lists, tuples or dicts in the collate"
        )
    return packer(item)


def _numpy_scalar(item: np.generic) -> msgpack.ExtType:
    if item.dtype.hasobject or item.dtype.names is not None:
        raise EncodingError(f"a numpy scalar of dtype {item.dtype} cannot travel in a batch")
    return msgpack.ExtType(_NUMPY_SCALAR, encode_value([item.dtype.str, item.tobytes()]))


_PACKERS: dict[type, Callable[[Any], msgpack.ExtType]] = {
    tuple: lambda item: msgpack.ExtType(_TUPLE, encode_value(list(item))),
    int: lambda item: msgpack.ExtType(
        _BIG_INT, item.to_bytes(item.bit_length() // 8 + 1, "little", signed=True)
    ),
    complex: lambda item: msgpack.ExtType(_COMPLEX, _PAIR.pack(item.real, item.imag)),
    set: lambda item: msgpack.ExtType(_SET, encode_value(list(item))),
    frozenset: lambda item: msgpack.ExtType(_FROZENSET, encode_value(list(item))),
}


def _from_ext(code: int, data: bytes) -> Any:
    reader = _READERS.get(code)
    if reader is None:
        raise ProtocolError(f"unknown value type {code}")
    return reader(data)


def _read_numpy_scalar(data: bytes) -> np.generic:
    name, raw = decode_value(data)
    dtype = np.dtype(name)
    # numpy reads no item of size 0, such as an empty np.str_.
    scalar: np.generic = np.frombuffer(raw, dtype)[0] if dtype.itemsize else dtype.type()
    return scalar


_READERS: dict[int, Callable[[bytes], Any]] = {
    _TUPLE: lambda data: tuple(decode_value(data)),
    _BIG_INT: lambda data: int.from_bytes(data, "little", signed=True),
    _NUMPY_SCALAR: _read_numpy_scalar,
    _COMPLEX: lambda data: complex(*_PAIR.unpack(data)),
    _SET: lambda data: set(decode_value(data)),
    _FROZENSET: lambda data: frozenset(decode_value(data)),
}
