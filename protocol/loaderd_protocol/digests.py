"""Digests of what a trainer was given, equal on both sides: of each row of a batch, or of a whole one.

A digest covers structure, types of values, dtypes, shapes and every byte; not strides, nor the names of
container classes, which a trainer that has not imported them gets as their plain equivalents.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_DIGEST_BYTES = 16
_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_PAIR = struct.Struct("<dd")


@dataclasses.dataclass(frozen=True, slots=True)
class Dense:
    """A tensor or array: ``data`` are its bytes in C order. ``dtype``: "torch float32", "numpy <f4"."""

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


#: What each side knows of tensors: a Dense, or None for what is none. numpy arrays are known here.
DenseOf = Callable[[object], Dense | None]


def tensors_of(torch: Any) -> DenseOf:
    """What ``torch`` knows; the module is given, as the protocol itself needs no torch."""

    def dense_of(item: object) -> Dense | None:
        """A tensor's bytes, whatever its dtype and strides."""
        if not isinstance(item, torch.Tensor):
            return None
        tensor: Any = item
        # A clone, as contiguous() keeps odd strides where there is but one element.
        plain = tensor.detach().resolve_conj().resolve_neg()
        plain = plain.clone(memory_format=torch.contiguous_format)
        flat = plain.reshape(-1).view(torch.uint8).numpy()
        return Dense(str(tensor.dtype).replace(".", " "), tuple(tensor.shape), flat)

    return dense_of


class Digester:
    """Walks batches; ``dense_of`` turns this side's tensors into bytes."""

    def __init__(self, dense_of: DenseOf) -> None:
        self._dense_of = dense_of

    def whole(self, batch: Any) -> str:
        """The digest of a batch, however it was collated.

        Raises: TypeError for what cannot travel in a batch.
        """
        state = _new()
        self._walk(batch, state)
        return state.hexdigest()

    def rows(self, batch: Any) -> tuple[str, ...]:
        """The digest of each row of a batch that the default collate made.

        Raises: TypeError for what cannot travel, ValueError where parts differ in their rows.
        """
        structure = _new()
        columns: list[_Column] = []
        self._transpose(batch, structure, columns, "batch")
        counts = {len(column.items): column.path for column in columns}
        if len(counts) != 1:
            found = ", ".join(f"{path} has {count}" for count, path in counts.items()) or "none"
            raise ValueError(f"the parts of a batch differ in their number of rows: {found}")
        digests = []
        for row in range(*counts):
            state = structure.copy()
            for column in columns:
                self._put_row(column, row, state)
            digests.append(state.hexdigest())
        return tuple(digests)

    def _put_row(self, column: _Column, row: int, state: hashlib.blake2b) -> None:
        if column.is_dense:
            state.update(memoryview(column.items[row]))
        else:
            self._walk(column.items[row], state)

    def _transpose(
        self, part: Any, structure: hashlib.blake2b, columns: list[_Column], path: str
    ) -> None:
        dense = self._dense(part)
        if dense is not None:
            if not dense.shape:
                raise ValueError(f"{path} is a tensor without dimensions: it has no rows")
            _put(structure, "column", f"{dense.dtype} {dense.shape[1:]}".encode())
            rows = dense.shape[0]
            width = len(dense.data) // rows if rows else 0
            columns.append(_Column(path, dense.data.reshape(rows, width), True))
        elif _is_column(part):
            _put(structure, "values", b"")
            columns.append(_Column(path, part, False))
        else:
            for name, child in self._open(part, structure, path):
                self._transpose(child, structure, columns, name)

    def _walk(self, part: Any, state: hashlib.blake2b) -> None:
        dense = self._dense(part)
        if dense is not None:
            _put(state, f"{dense.dtype} {dense.shape}", b"")
            state.update(dense.data.tobytes())
        elif isinstance(part, np.generic):
            _put(state, f"scalar {part.dtype.str}", part.tobytes())
        elif isinstance(part, _ATOMS):
            _put(state, type(part).__name__, _atom(part))
        elif isinstance(part, set | frozenset):
            _put(state, "set", "".join(sorted(map(self.whole, part))).encode())
        else:
            for _name, child in self._open(part, state, "batch"):
                self._walk(child, state)

    def _open(self, part: Any, state: hashlib.blake2b, path: str) -> list[tuple[str, Any]]:
        """The children of a container, which is told to ``state``."""
        names = _field_names(part)
        if names is not None:
            _put(state, "record", "\0".join(names).encode())
            return [(f"{path}.{name}", getattr(part, name)) for name in names]
        if isinstance(part, Mapping):
            _put(state, "mapping", str(len(part)).encode())
            for key in part:
                self._walk(key, state)
            return [(f"{path}[{key!r}]", value) for key, value in part.items()]
        if isinstance(part, Sequence):
            kind = "tuple" if type(part) is tuple else "list"
            _put(state, kind, str(len(part)).encode())
            return [(f"{path}[{i}]", child) for i, child in enumerate(part)]
        raise TypeError(f"{path} is a {type(part).__name__}, which cannot travel in a batch")

    def _dense(self, part: Any) -> Dense | None:
        if isinstance(part, np.ndarray):
            flat = np.frombuffer(np.ascontiguousarray(part).tobytes(), np.uint8)
            return Dense(f"numpy {part.dtype.str}", part.shape, flat)
        return self._dense_of(part)


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """One leaf of a batch: an item a row; where it is dense, a row of bytes."""

    path: str
    items: Any
    is_dense: bool


def _is_column(part: Any) -> bool:
    """Strings, bytes and None stay a list, where the parts of a container are collated."""
    is_list = isinstance(part, list | tuple) and not hasattr(part, "_fields")
    return is_list and any(isinstance(item, _ATOMS) for item in part)


def _field_names(part: Any) -> tuple[str, ...] | None:
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return tuple(part._fields)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return tuple(field.name for field in dataclasses.fields(part))
    return None


def _atom(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if isinstance(item, float | complex):
        return _PAIR.pack(item.real, item.imag)
    return repr(item).encode()


def _new() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _put(state: hashlib.blake2b, kind: str, data: bytes) -> None:
    """With its length, so that no two walks give the same bytes."""
    state.update(f"{kind}:{len(data)}:".encode())
    state.update(data)
