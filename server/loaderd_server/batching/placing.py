"""Where in a slot each tensor of a batch goes, and the one write that puts it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from loaderd_protocol.errors import EncodingError
from loaderd_protocol.layout import Node, Tensor, Value, align, encode_layout, extent
from loaderd_protocol.values import encode_value, is_value

Bytes = npt.NDArray[np.uint8]
Write = Callable[[Bytes], None]


class TooLarge(Exception):
    """The batch does not fit its slot; nothing was written."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"the batch needs {needed_bytes} bytes")
        self.needed_bytes = needed_bytes


@dataclass(slots=True)
class Placement:
    """A batch that is planned and not yet written: offsets grow, writes are collected."""

    end: int = 0
    values: list[Any] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    def reserve(self, size_bytes: int) -> int:
        """Room for ``size_bytes``, aligned; returns its offset."""
        offset = align(self.end)
        self.end = offset + size_bytes
        return offset

    def value(self, item: Any, path: str) -> Value:
        """A leaf that is no tensor.

        Raises: EncodingError naming place and type of what cannot travel.
        """
        if not is_value(item):
            raise EncodingError(
                f"{path} is a {type(item).__module__}.{type(item).__qualname__}, which cannot travel "
                f"in a batch: turn it into tensors, arrays, numbers, strings, bytes or containers of "
                f"these in the dataset or the collate"
            )
        self.values.append(item)
        return Value(len(self.values) - 1)

    def stack(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> Tensor:
        """One tensor more in front of the dimensions of these, which have one shape."""
        shape = (len(tensors), *tensors[0].shape)
        offset = self.reserve(_bytes(shape, dtype))
        if 0 not in shape:
            self.writes.append(lambda slot: _stack(slot, offset, shape, dtype, tensors))
        return Tensor(_name(dtype), shape, offset)

    def stack_arrays(self, arrays: Sequence[npt.NDArray[Any]], dtype: torch.dtype) -> Tensor:
        """The same for numpy arrays of any strides, byte orders and dtypes that ``dtype`` can hold."""
        shape = (len(arrays), *arrays[0].shape)
        offset = self.reserve(_bytes(shape, dtype))
        if 0 not in shape:
            native = torch.empty(0, dtype=dtype).numpy().dtype
            self.writes.append(lambda slot: _stack_arrays(slot, offset, shape, native, arrays))
        return Tensor(_name(dtype), shape, offset)

    def tensor(self, tensor: torch.Tensor, path: str) -> Tensor:
        """A tensor as it is: values, dtype, shape, and strides where they leave no holes.

        Raises: EncodingError for a tensor that is not dense and in host memory.
        """
        plain = _dense(tensor, path)
        shape = tuple(plain.shape)
        single = _without_repeats(plain)
        if 0 in shape or tuple(plain.stride()) == _contiguous(shape):
            strides = None
        elif extent(tuple(single.shape), single.stride()) == single.numel():
            strides = tuple(plain.stride())
        else:
            strides, single = None, plain
        count = plain.numel() if strides is None else single.numel()
        offset = self.reserve(count * plain.dtype.itemsize)
        if count > 0:
            self.writes.append(lambda slot: _copy(slot, offset, count, single, strides))
        return Tensor(_name(plain.dtype), shape, offset, strides)

    def array(self, array: npt.NDArray[Any], path: str) -> Tensor:
        """A numpy array as it is, C-contiguous.

        Raises: EncodingError for dtypes that hold objects or fields.
        """
        if array.dtype.hasobject or array.dtype.names is not None:
            raise EncodingError(
                f"{path} is a numpy array of dtype {array.dtype}, which cannot travel in a batch: "
                f"turn it into arrays of numbers"
            )
        offset = self.reserve(array.nbytes)
        if array.size > 0:
            self.writes.append(lambda slot: _copy_array(slot, offset, array))
        return Tensor(array.dtype.str, tuple(array.shape), offset, None, is_array=True)


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch that can be written, to one slot or to another."""

    root: Node
    placement: Placement


@dataclass(frozen=True, slots=True)
class Written:
    """A batch in its slot."""

    layout: bytes
    size_bytes: int
    tail_offset: int
    tail_bytes: int


def size_of(placement: Placement) -> int:
    """The slot a batch needs."""
    return align(placement.end) + len(_tail(placement))


def write(root: Node, placement: Placement, slot: Bytes) -> Written:
    """Writes a batch.

    Raises: TooLarge before anything is written.
    """
    tail = _tail(placement)
    tail_offset = align(placement.end)
    needed = max(tail_offset + len(tail), 1)
    if needed > len(slot):
        raise TooLarge(needed)
    for put in placement.writes:
        put(slot)
    if tail:
        slot[tail_offset : tail_offset + len(tail)] = np.frombuffer(tail, np.uint8)
    # Encoded anew each time (4 us): equal roots are not the same layout where keys are 1 and True.
    return Written(encode_layout(root), needed, tail_offset, len(tail))


def _tail(placement: Placement) -> bytes:
    return encode_value(placement.values) if placement.values else b""


def _stack(
    slot: Bytes,
    offset: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    tensors: Sequence[torch.Tensor],
) -> None:
    count = extent(shape, None)
    place = torch.frombuffer(slot, dtype=dtype, count=count, offset=offset).view(shape)
    if all(tensor.dtype is dtype for tensor in tensors):
        torch.stack(list(tensors), 0, out=place)
        return
    for row, tensor in enumerate(tensors):
        place[row].copy_(tensor)


def _stack_arrays(
    slot: Bytes,
    offset: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    arrays: Sequence[npt.NDArray[Any]],
) -> None:
    place = slot[offset : offset + extent(shape, None) * dtype.itemsize].view(dtype).reshape(shape)
    for row, array in enumerate(arrays):
        place[row] = array


def _copy(
    slot: Bytes,
    offset: int,
    count: int,
    tensor: torch.Tensor,
    strides: tuple[int, ...] | None,
) -> None:
    flat = torch.frombuffer(slot, dtype=tensor.dtype, count=count, offset=offset)
    place = flat.view(tensor.shape) if strides is None else flat.as_strided(tensor.shape, strides)
    place.copy_(tensor)


def _copy_array(slot: Bytes, offset: int, array: npt.NDArray[Any]) -> None:
    place = slot[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    place[...] = array


def _dense(tensor: torch.Tensor, path: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        kind = "quantized" if tensor.is_quantized else kind
        raise EncodingError(
            f"{path} is a {kind} tensor; only dense tensors travel in a batch. Return its parts "
            f"(values, indices, offsets) as dense tensors."
        )
    if tensor.device.type != "cpu":
        raise EncodingError(
            f"{path} is a tensor on {tensor.device}; workers make batches in host memory. Return it "
            f"with .cpu(), or leave the device to the trainer."
        )
    return tensor.detach().resolve_conj().resolve_neg()


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with each expanded dimension (stride 0) cut to one."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return extent(shape, None) * dtype.itemsize


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
