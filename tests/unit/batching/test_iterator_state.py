"""A dataset's state comes back as it went, or is refused by name; garbage is an error, no crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loaderd_protocol.errors import EncodingError, ProtocolError
from loaderd_protocol.values import encode_value
from loaderd_server.batching.iterator_state import (
    LIMIT_BYTES,
    Holder,
    IteratorState,
    decode_state,
    encode_state,
)


def through(state: Any) -> Any:
    decoded = decode_state(encode_state(IteratorState(Holder.DATASET, state)))
    assert decoded.holder is Holder.DATASET
    return decoded.state


@pytest.mark.parametrize(
    "state",
    [
        {"position": (1, [2.5, None]), 3: b"x", "big": 1 << 100},
        {"pcg": np.random.PCG64(3).state},
        ["v", ["t", "int64"]],
    ],
)
def test_plain_data_is_kept_exactly(state: Any) -> None:
    assert through({"s": state, "with": torch.zeros(1)})["s"] == state
    assert through(state) == state


@pytest.mark.parametrize(
    "tensor",
    [
        torch.Generator().manual_seed(5).get_state(),
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(3, dtype=torch.bfloat16),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_tensors_are_kept_exactly(tensor: torch.Tensor) -> None:
    got = through({"t": [tensor]})["t"][0]
    assert got.dtype is tensor.dtype
    assert torch.equal(got, tensor)
    got.fill_(0)


@pytest.mark.parametrize(
    "array",
    [np.random.MT19937(1).state["state"]["key"], np.zeros((0, 2)), np.arange(4, dtype=">i4")[::2]],
    ids=lambda array: str(array.dtype),
)
def test_arrays_are_kept_exactly(array: Any) -> None:
    got = through((array, 1))[0]
    assert got.dtype == array.dtype
    assert np.array_equal(got, array)
    got.fill(0)


def nested(depth: int) -> Any:
    state: Any = object
    for _ in range(depth):
        state = [state]
    return state


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"a": [1, object()]}, r"state\['a'\]\[1\] is a builtins.object"),
        (np.array([object()]), "state is a numpy.ndarray"),
        (torch.eye(2).to_sparse(), "state is a torch.Tensor"),
        ({object(): 1}, "state is a builtins.dict"),
        (nested(500), "nested too deep"),
        (torch.zeros(LIMIT_BYTES), f"more than {LIMIT_BYTES}"),
    ],
)
def test_what_cannot_be_kept_is_named(state: Any, says: str) -> None:
    with pytest.raises(EncodingError, match=says):
        encode_state(IteratorState(Holder.ITERATOR, state))


def check_that_it_is_refused_or_a_state(data: bytes) -> None:
    try:
        decoded = decode_state(data)
    except ProtocolError:
        return
    assert isinstance(decoded, IteratorState)


@given(st.binary(max_size=40))
def test_garbage_is_a_protocol_error_or_a_state(data: bytes) -> None:
    check_that_it_is_refused_or_a_state(data)


@given(st.data())
def test_a_damaged_state_is_a_protocol_error_or_a_state(data: Any) -> None:
    state = {"a": np.arange(3), "t": torch.arange(3), "l": [(1,), None]}
    whole = bytearray(encode_state(IteratorState(Holder.DATASET, state)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    check_that_it_is_refused_or_a_state(bytes(whole))


def test_a_shape_that_the_bytes_do_not_fill_takes_no_memory() -> None:
    claimed = encode_value(["dataset", ["t", "float32", [1 << 40], b""]])
    with pytest.raises(ProtocolError, match="not a dataset's state"):
        decode_state(claimed)
