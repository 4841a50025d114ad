"""The default collate: torch's ``default_collate`` by its rules, planned first, then written once.

Follows torch/utils/data/_utils/collate.py of torch 2.13: tensors are stacked, numbers become tensors,
strings stay a list, containers are transposed (a tuple comes as a list). Beyond it: dataclasses field
by field, None as a list of None, arrays of any strides; and shapes that differ are named with their indices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

from loaderd_protocol.errors import EncodingError
from loaderd_protocol.layout import Entries, Fields, Items, Node, Tensor
from loaderd_protocol.values import is_value
from loaderd_server.batching.placing import Placement
from loaderd_server.batching.tree import class_name

_STRINGS = (str, bytes)
_ODD_DTYPES = "OSUV"
_QUANTIZED = {torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4}


class CollateError(RuntimeError):
    """Samples that cannot stand in one batch; the text names place, what differs, and both indices."""


class DefaultCollate:
    """Plans one batch of samples; ``indices`` are the samples' dataset indices, for errors."""

    def __init__(self, placement: Placement, indices: Sequence[int]) -> None:
        self._placement = placement
        self._indices = indices

    def plan(self, samples: Sequence[Any], path: str = "sample") -> Node:
        """The batch of these samples.

        Raises: CollateError, or TypeError for what torch's rules have no place for.
        """
        first = samples[0]
        if isinstance(first, torch.Tensor):
            return self._tensors(samples, path)
        if isinstance(first, np.ndarray):
            return self._arrays(samples, path)
        if isinstance(first, bool | int | float | np.bool_ | np.number):
            return self._numbers(samples, path)
        if isinstance(first, _STRINGS) or first is None:
            return self._plain(samples, path)
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return self._records(samples, first._fields, False, path)
        if dataclasses.is_dataclass(first) and not isinstance(first, type):
            names = tuple(field.name for field in dataclasses.fields(first))
            return self._records(samples, names, True, path)
        if isinstance(first, Mapping):
            return self._mappings(samples, path)
        if isinstance(first, Sequence):
            return self._sequences(samples, path)
        raise TypeError(
            f"default_collate: {path} must contain tensors, numpy arrays, numbers, dicts or lists; "
            f"found {type(first)} in the sample at index {self._indices[0]}"
        )

    def _tensors(self, tensors: Sequence[Any], path: str) -> Tensor:
        self._same_kind(tensors, torch.Tensor, path)
        layouts = {tensor.layout for tensor in tensors}
        dtypes = {tensor.dtype for tensor in tensors}
        # torch.stack of quantized tensors with out= is a segmentation fault (torch 2.13).
        if layouts != {torch.strided} or tensors[0].is_nested or dtypes & _QUANTIZED:
            kinds = ", ".join(sorted(str(kind) for kind in (*layouts, *dtypes)))
            raise TypeError(
                f"default_collate: {path} is a sparse, nested or quantized tensor ({kinds}); give "
                f"the stream a collate of its own that returns dense tensors"
            )
        self._same_shape([tuple(tensor.shape) for tensor in tensors], path)
        return self._placement.stack([tensor.detach() for tensor in tensors], _promoted(dtypes))

    def _arrays(self, arrays: Sequence[Any], path: str) -> Tensor:
        self._same_kind(arrays, np.ndarray, path)
        dtypes = {array.dtype for array in arrays}
        for dtype in dtypes:
            if dtype.kind in _ODD_DTYPES:
                raise TypeError(
                    f"default_collate: {path} is a numpy array of dtype {dtype}, which torch has not"
                )
        self._same_shape([array.shape for array in arrays], path)
        promoted = _promoted({_torch_dtype(dtype, path) for dtype in dtypes})
        return self._placement.stack_arrays(arrays, promoted)

    def _plain(self, samples: Sequence[Any], path: str) -> Node:
        try:
            return self._placement.value(samples, path)
        except EncodingError:
            odd = next(row for row, sample in enumerate(samples) if not is_value(sample))
            if odd == 0:
                self._placement.value(samples[0], path)
            raise self._two_kinds(samples, odd, path) from None

    def _numbers(self, numbers: Sequence[Any], path: str) -> Node:
        first = numbers[0]
        try:
            if isinstance(first, np.bool_ | np.number):
                made = torch.as_tensor(numbers)
            elif isinstance(first, float):
                made = torch.tensor(numbers, dtype=torch.float64)
            else:
                made = torch.tensor(numbers)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            row = next((i for i, n in enumerate(numbers) if type(n) is not type(first)), 0)
            raise CollateError(
                f"{path}: {error} ({type(first).__name__} in the sample at index {self._indices[0]}, "
                f"{type(numbers[row]).__name__} in the sample at index {self._indices[row]})"
            ) from None
        return self._placement.tensor(made, path)

    def _records(
        self, samples: Sequence[Any], names: tuple[str, ...], is_dataclass: bool, path: str
    ) -> Fields:
        self._same_kind(samples, type(samples[0]), path)
        # As torch: a namedtuple is transposed by zip, so its columns are tuples.
        columns = [tuple(getattr(sample, name) for sample in samples) for name in names]
        children = [
            self.plan(column, f"{path}.{name}") for column, name in zip(columns, names, strict=True)
        ]
        return Fields(class_name(samples[0], ()), is_dataclass, names, tuple(children))

    def _mappings(self, samples: Sequence[Any], path: str) -> Entries:
        self._same_kind(samples, Mapping, path)
        keys = tuple(samples[0])
        for row, sample in enumerate(samples):
            missing = [key for key in keys if key not in sample]
            if missing:
                raise CollateError(
                    f"{path} has the key {missing[0]!r} in the sample at index {self._indices[0]}, "
                    f"but not in the sample at index {self._indices[row]}"
                )
        for key in keys:
            self._placement.value(key, f"a key of {path}")
            self._placement.values.pop()
        children = [
            self.plan([sample[key] for sample in samples], f"{path}[{key!r}]") for key in keys
        ]
        return Entries(class_name(samples[0], (dict,)), keys, tuple(children))

    def _sequences(self, samples: Sequence[Any], path: str) -> Items:
        self._same_kind(samples, Sequence, path)
        for row, sample in enumerate(samples):
            if len(sample) != len(samples[0]):
                raise CollateError(
                    f"each element in list of batch should be of equal size: {path} has "
                    f"{len(samples[0])} items in the sample at index {self._indices[0]}, "
                    f"{len(sample)} in the sample at index {self._indices[row]}"
                )
        columns = list(zip(*samples, strict=True))
        children = [self.plan(column, f"{path}[{i}]") for i, column in enumerate(columns)]
        first = samples[0]
        name = "list" if isinstance(first, tuple | range) else class_name(first, (list,))
        return Items(name, tuple(children))

    def _same_kind(self, items: Sequence[Any], kind: type, path: str) -> None:
        for row, item in enumerate(items):
            if not isinstance(item, kind):
                raise self._two_kinds(items, row, path)

    def _two_kinds(self, items: Sequence[Any], row: int, path: str) -> CollateError:
        return CollateError(
            f"{path} is a {type(items[0]).__name__} in the sample at index {self._indices[0]}, a "
            f"{type(items[row]).__name__} in the sample at index {self._indices[row]}"
        )

    def _same_shape(self, shapes: Sequence[tuple[int, ...]], path: str) -> None:
        for row, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise CollateError(
                    f"stack expects each tensor to be equal size: {path} has shape "
                    f"{list(shapes[0])} in the sample at index {self._indices[0]}, {list(shape)} in "
                    f"the sample at index {self._indices[row]}"
                )


def _promoted(dtypes: set[torch.dtype]) -> torch.dtype:
    return reduce(torch.promote_types, dtypes)


def _torch_dtype(dtype: np.dtype[Any], path: str) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype
    except TypeError:
        raise TypeError(
            f"default_collate: {path} is a numpy array of dtype {dtype}, which torch has not"
        ) from None
