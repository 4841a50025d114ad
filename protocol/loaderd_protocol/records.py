"""Frozen dataclasses as msgpack arrays, checked field by field on the way in.

A record is ``[field, field, ...]`` in the order of its definition. Fields may be int (64 bits), float,
bool, str, bytes, an IntEnum, a numpy array of one axis (as its bytes), another record, a tuple of one of
these, or one of these or None. Fields that the sender did not know yet take their default; fields that this
side does not know yet are ignored.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Hashable
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar

import numpy as np

from loaderd_protocol.errors import ProtocolError

R = TypeVar("R")
Reader = Callable[[object], Any]
#: What msgpack takes as it is, and most fields are.
_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))


def to_array(record: object) -> list[object]:
    """The fields of a record (and of the records in it) as a list for msgpack."""
    return [_plain(getattr(record, name)) for name in _names(typing.cast(Hashable, type(record)))]


def from_array(record_type: type[R], array: object) -> R:
    """The record that ``to_array`` made a list of.

    Raises: ProtocolError naming the field, the type expected and the value found.
    """
    readers, required = _readers(typing.cast(Hashable, record_type))
    if not isinstance(array, (list, tuple)) or len(array) < required:
        raise ProtocolError(
            f"{record_type.__name__} needs at least {required} fields, got {_short(array)}"
        )
    values = []
    for (name, read), value in zip(readers, array, strict=False):
        try:
            values.append(read(value))
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"{record_type.__name__}.{name}: {error}") from None
    return record_type(*values)


def _plain(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return to_array(value)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return value


@cache
def _names(record_type: Hashable) -> tuple[str, ...]:
    fields = dataclasses.fields(typing.cast(type, record_type))
    return tuple(field.name for field in fields)


@cache
def _readers(record_type: Hashable) -> tuple[list[tuple[str, Reader]], int]:
    hints = typing.get_type_hints(record_type)
    fields = dataclasses.fields(typing.cast(type, record_type))
    required = sum(
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in fields
    )
    return [(field.name, _reader(hints[field.name])) for field in fields], required


def _reader(hint: Any) -> Reader:
    kind = typing.get_origin(hint)
    if kind is tuple:
        return _tuple_reader(_reader(typing.get_args(hint)[0]))
    if kind is types.UnionType:
        (known,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return _optional_reader(_reader(known))
    if kind is np.ndarray:
        (scalar,) = typing.get_args(typing.get_args(hint)[1])
        return lambda value: np.frombuffer(_exact(bytes, value), scalar)
    if dataclasses.is_dataclass(hint):
        return lambda value: from_array(typing.cast(type, hint), value)
    if issubclass(hint, IntEnum):
        return lambda value: hint(_exact(int, value))
    if hint is float:
        return lambda value: float(_exact(float, value) if type(value) is not int else value)
    return lambda value: _exact(hint, value)


def _optional_reader(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _tuple_reader(read: Reader) -> Reader:
    def read_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"expected an array, got {_short(value)}")
        return tuple(read(item) for item in value)

    return read_all


def _exact(expected: type, value: object) -> Any:
    if type(value) is not expected:
        raise TypeError(f"expected {expected.__name__}, got {_short(value)}")
    return value


def _short(value: object) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else text[:77] + "..."
