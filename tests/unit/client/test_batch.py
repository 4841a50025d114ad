"""A slot's bytes become the batch that was written; a wrong layout is an error, never a crash."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import case_datasets
from tests.support.making import read

from loaderd.batch import build
from loaderd_protocol.errors import EncodingError, ProtocolError
from loaderd_protocol.layout import Entries, Fields, Items, Node, Tensor, Value, encode_layout
from loaderd_protocol.messages import Announce
from loaderd_protocol.values import encode_value
from loaderd_server.batching.placing import Placement, write
from loaderd_server.batching.tree import plan_tree


def through(batch: Any, output: str = "torch") -> Any:
    placement = Placement()
    root = plan_tree(batch, placement)
    slot = np.full(1 << 16, 0xAB, dtype=np.uint8)
    return read(slot, write(root, placement, slot), output)


def from_layout(root: Node, values: list[Any] | None = None, size: int = 256) -> Any:
    tail = b"" if values is None else encode_value(values)
    base = np.zeros(size, dtype=np.uint8)
    base[128 : 128 + len(tail)] = np.frombuffer(tail, np.uint8)
    layout = encode_layout(root)
    announce = Announce(0, 0, 0, 0, 0, 0, 0, 0, size, 0, layout, 128, len(tail))
    return build(base, announce, "torch")


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
    torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bytes(dtype: torch.dtype) -> None:
    raw = torch.arange(48, dtype=torch.uint8) % 2
    tensor = raw.view(dtype)
    got = through(tensor)
    assert got.dtype is dtype
    assert torch.equal(got.view(torch.uint8), raw)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.permutations(range(4)),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_permuted_sliced_and_expanded_tensors_keep_values_and_dense_strides(
    shape: list[int], order: list[int], steps: list[bool]
) -> None:
    tensor = torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape)
    tensor = tensor.permute([axis for axis in order if axis < len(shape)])
    dense = through(tensor)
    assert torch.equal(dense, tensor)
    assert tensor.numel() == 0 or dense.stride() == tensor.stride()
    sliced = tensor[tuple(slice(None, None, 2 if step else 1) for step in steps[: tensor.dim()])]
    assert torch.equal(through(sliced), sliced)
    expanded = tensor.unsqueeze(0).expand(3, *tensor.shape)
    assert torch.equal(through(expanded), expanded)


def test_each_tensor_has_a_storage_of_its_own() -> None:
    first, second = through([torch.ones(3), torch.zeros(5)])
    assert first.untyped_storage().nbytes() == 12
    assert len(pickle.dumps(second)) < 1000
    first += 1
    assert second.tolist() == [0] * 5


def test_containers_come_with_their_classes() -> None:
    batch = {
        "ordered": collections.OrderedDict(a=torch.ones(1)),
        "point": case_datasets.Point(torch.ones(1), torch.ones(1)),
        "pair": case_datasets.Pair(torch.ones(1), "text"),
        "tuple": (torch.ones(1), [torch.ones(1), "text"]),
        ("key", 1): [1, (2,), {3: 4}],
    }
    got = through(batch)
    for key, value in batch.items():
        assert type(got[key]) is type(value)
    assert got["tuple"][1][1] == "text"
    assert got["pair"].right == "text"
    assert got[("key", 1)] == [1, (2,), {3: 4}]


def test_classes_that_are_not_imported_come_as_the_plain_equivalent_with_the_name() -> None:
    point = from_layout(Fields("never.imported:Outer.Point", False, ("x",), (Value(0),)), [5])
    assert (type(point).__name__, point.x) == ("Point", 5)
    record = from_layout(Fields("never.imported:Record", True, ("x",), (Value(0),)), [6])
    assert (type(record).__name__, record.x) == ("Record", 6)
    assert from_layout(Items("never.imported:Seq", (Value(0),)), [7]) == [7]
    assert from_layout(Entries("never.imported:Map", ("k",), (Value(0),)), [8]) == {"k": 8}


def test_a_name_that_is_no_class_is_not_called() -> None:
    assert from_layout(Items("os:system", (Value(0),)), ["echo"]) == ["echo"]


@pytest.mark.parametrize(
    "root",
    [
        Tensor("float32", (100,), 0),
        Tensor("float32", (4,), 1 << 40),
        Tensor("float32", (2, 2), 0, (1000, 1)),
        Tensor("<f4", (100,), 0, None, True),
        Tensor("no_dtype", (1,), 0),
        Tensor("Tensor", (1,), 0),
        Value(3),
    ],
    ids=str,
)
def test_a_layout_that_does_not_fit_is_a_protocol_error(root: Node) -> None:
    with pytest.raises(ProtocolError):
        from_layout(root, ["one value"])


def test_numpy_output_gives_arrays_and_names_what_numpy_has_not() -> None:
    got = through({"x": torch.arange(6).reshape(2, 3).t()}, "numpy")
    assert isinstance(got["x"], np.ndarray)
    assert got["x"].tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(TypeError, match=r"numpy has no bfloat16: use output='torch'"):
        through(torch.ones(1, dtype=torch.bfloat16), "numpy")


def test_numpy_arrays_stay_arrays() -> None:
    array = np.array([["ab", "c"]])
    got = through([array, torch.ones(1)])
    assert got[0].dtype == array.dtype
    assert got[0].tolist() == array.tolist()


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ([torch.ones(2).to_sparse()], r"batch\[0\] is a sparse_coo tensor; only dense"),
        ({"a": object()}, r"batch\['a'\] is a builtins\.object, which cannot travel"),
        ([np.array([None])], r"batch\[0\] is a numpy array of dtype object"),
        ({"a": [torch.ones(1), bytearray(b"x")]}, r"batch\['a'\]\[1\] is a builtins\.bytearray"),
        ({object(): torch.ones(1)}, r"a key of batch is a builtins\.object"),
    ],
)
def test_what_cannot_travel_is_named_with_its_place(batch: Any, says: str) -> None:
    with pytest.raises(EncodingError, match=says):
        through(batch)
