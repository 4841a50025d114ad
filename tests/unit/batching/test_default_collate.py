"""The default collate is torch's, written straight into the slot."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.making import read
from torch.utils.data import default_collate

from loaderd_protocol.errors import EncodingError
from loaderd_server.batching.collate import CollateError, DefaultCollate
from loaderd_server.batching.placing import Placement, TooLarge, write


def collated(samples: list[Any], slot_bytes: int = 1 << 16) -> Any:
    placement = Placement()
    root = DefaultCollate(placement, range(100, 100 + len(samples))).plan(samples)
    slot = np.full(slot_bytes, 0xAB, dtype=np.uint8)
    return read(slot, write(root, placement, slot))


def assert_equal(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        assert torch.equal(got, wanted) or torch.isnan(wanted).any()
    elif isinstance(wanted, Mapping):
        assert list(got) == list(wanted)
        for key in wanted:
            assert_equal(got[key], wanted[key])
    elif isinstance(wanted, list | tuple) and not isinstance(wanted, str):
        assert len(got) == len(wanted)
        for left, right in zip(got, wanted, strict=True):
            assert_equal(left, right)
    else:
        assert got == wanted


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls one a prototype, the other deprecated
    NESTED = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    QUANTIZED = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8)


class Named(NamedTuple):
    image: torch.Tensor
    label: int


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    name: str


SAMPLES: list[list[Any]] = [
    [torch.ones(2, 3), torch.zeros(2, 3)],
    [torch.ones(2), torch.ones(2, dtype=torch.float64)],
    [torch.ones(2, dtype=torch.int8), torch.ones(2, dtype=torch.bool)],
    [torch.tensor([1 + 2j]).conj(), torch.tensor([3j])],
    [torch.zeros(0, 4), torch.zeros(0, 4)],
    [torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(3, 2)],
    [torch.ones(2, requires_grad=True), torch.ones(2)],
    [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)],
    [np.ones(2, np.float32), np.ones(2, np.float64)],
    [np.array([1, 65535], np.uint16), np.array([2, 3], np.uint16)],
    [np.float32(1.5), np.float32(2.5)],
    [np.int16(1), np.int16(2)],
    [np.bool_(True), np.bool_(False)],
    [1, 2],
    [True, False],
    [1.5, 2],
    [1, 2.5],
    ["a", "b"],
    [b"a", b"b"],
    [(1, "a", torch.ones(1)), (2, "b", torch.zeros(1))],
    [[1, [2.0]], [3, [4.0]]],
    [{"x": 1, "y": {"z": "s"}}, {"x": 2, "y": {"z": "t"}}],
    [{1: "a", (2, 3): 4}, {1: "b", (2, 3): 5}],
    [Named(torch.ones(2), 3), Named(torch.zeros(2), 4)],
    [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
    [range(3), range(3)],
    [(), ()],
    [np.array(1, np.int32), np.array(2, np.int64)],
    [np.array(1, np.int32), np.array(2, np.int32)],
    ["a", 1],
    [np.str_(""), np.str_("b")],
    [torch.tensor([1 + 2j]).conj().imag, torch.tensor([3.0])],
    [torch.arange(3).expand(2, 3), torch.arange(6).reshape(2, 3)],
    [collections.UserDict(a=1), collections.UserDict(a=2)],
]


@pytest.mark.parametrize("samples", SAMPLES, ids=[str(samples[0])[:40] for samples in SAMPLES])
@pytest.mark.filterwarnings("ignore:.*requires_grad")
def test_it_gives_what_torch_gives(samples: list[Any]) -> None:
    wanted = default_collate(samples)
    if isinstance(wanted, torch.Tensor):
        wanted = wanted.detach().resolve_conj()
    assert_equal(collated(samples), wanted)


leaves = st.one_of(
    st.tuples(st.just("int"), st.integers(-(2**40), 2**40)),
    st.tuples(st.just("float"), st.floats(allow_nan=False)),
    st.tuples(st.just("str"), st.text(max_size=3)),
    st.tuples(
        st.just("tensor"),
        st.lists(st.integers(0, 3), max_size=3).map(tuple),
        st.sampled_from([torch.float32, torch.uint8, torch.bfloat16, torch.bool, torch.int64]),
    ),
    st.tuples(st.just("array"), st.lists(st.integers(0, 3), max_size=2).map(tuple)),
)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("list"), st.lists(inner, max_size=3)),
        st.tuples(st.just("tuple"), st.lists(inner, max_size=3)),
        st.tuples(st.just("dict"), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    ),
    max_leaves=8,
)


def sample_of(structure: Any, row: int) -> Any:
    kind, content = structure[0], structure[1]
    match kind:
        case "int":
            return content + row
        case "float":
            return content
        case "str":
            return f"{content}{row}"
        case "tensor":
            return torch.full(content, row % 2).to(structure[2])
        case "array":
            return np.full(content, row, dtype=np.int32)
        case "list":
            return [sample_of(item, row) for item in content]
        case "tuple":
            return tuple(sample_of(item, row) for item in content)
    return {key: sample_of(item, row) for key, item in content.items()}


@settings(deadline=None)
@given(structures, st.integers(1, 5))
def test_any_nested_samples_come_as_torch_would_collate_them(structure: Any, rows: int) -> None:
    samples = [sample_of(structure, row) for row in range(rows)]
    assert_equal(collated(samples), default_collate(samples))


def test_dataclasses_are_collated_field_by_field() -> None:
    got: Any = collated([Record(torch.ones(2), "a"), Record(torch.zeros(2), "b")])
    assert isinstance(got, Record)
    assert got.image.tolist() == [[1, 1], [0, 0]]
    assert list(got.name) == ["a", "b"]


def test_none_is_a_list_of_none() -> None:
    assert collated([None, None]) == [None, None]


def test_arrays_of_any_strides_and_byte_order_are_read_where_they_lie() -> None:
    base = np.arange(12, dtype=np.int32).reshape(3, 4)
    views = [base[::-1, ::-2], base.T[1:3].T[:, :2]]
    assert collated(views).tolist() == [view.tolist() for view in views]
    swapped = base.astype(">i4")
    assert collated([swapped, swapped]).tolist() == [base.tolist()] * 2
    locked = base.astype(np.int64)
    locked.flags.writeable = False
    both = collated([swapped, locked])
    assert (both.dtype, both.tolist()) == (torch.int64, [base.tolist()] * 2)


WRONG: list[tuple[list[Any], str]] = [
    ([torch.zeros(3, 4), torch.zeros(3, 5)], r"sample has shape \[3, 4\] in the sample at index 100, \[3, 5\] in the sample at index 101"),
    ([{"x": [torch.zeros(1)]}, {"x": [torch.zeros(2)]}], r"sample\['x'\]\[0\] has shape \[1\].*\[2\]"),
    ([np.zeros(1), np.zeros(2)], r"shape \[1\].*shape|\[2\]"),
    ([{"x": 1, "y": 2}, {"x": 1}], r"has the key 'y' in the sample at index 100, but not in .*101"),
    ([[1, 2], [1]], r"equal size: sample has 2 items in the sample at index 100, 1 in .*101"),
    ([torch.zeros(1), 3], r"is a Tensor in the sample at index 100, a int in .*101"),
    ([None, torch.zeros(1)], r"is a NoneType in the sample at index 100, a Tensor in .*101"),
    ([{"x": "a"}, {"x": np.zeros(1)}], r"sample\['x'\] is a str in .*100, a ndarray in .*101"),
    ([1, "a"], r"int in the sample at index 100, str in the sample at index 101"),
]  # fmt: skip


@pytest.mark.parametrize(("samples", "says"), WRONG, ids=[says[:50] for _samples, says in WRONG])
def test_samples_that_do_not_fit_together_are_named(samples: list[Any], says: str) -> None:
    with pytest.raises(CollateError, match=says):
        collated(samples)


@pytest.mark.parametrize(
    "sample",
    [
        object(), np.array(["a"]), np.array([None]), torch.ones(2).to_sparse(), 1j,
        NESTED, QUANTIZED,
    ],
)  # fmt: skip
def test_what_torchs_rules_have_no_place_for_is_a_type_error(sample: Any) -> None:
    with pytest.raises(TypeError, match="default_collate"):
        collated([sample, sample])


def test_a_batch_that_does_not_fit_is_told_before_anything_is_written() -> None:
    placement = Placement()
    root = DefaultCollate(placement, [0, 1]).plan([torch.ones(100), torch.ones(100)])
    slot = np.zeros(799, dtype=np.uint8)
    with pytest.raises(TooLarge) as caught:
        write(root, placement, slot)
    assert caught.value.needed_bytes >= 800
    assert not slot.any()


def test_a_sparse_tensor_among_dense_ones_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"sparse, nested or quantized.*torch.sparse_coo"):
        collated([torch.ones(2), torch.ones(2).to_sparse()])


class Coloured(str):
    """A string class that the trainer may not know."""


def test_a_string_class_is_named() -> None:
    with pytest.raises(EncodingError, match=r"sample\[0\] is a .*Coloured, which cannot travel"):
        collated([(Coloured("a"),), (Coloured("b"),)])


def test_equal_keys_of_two_types_are_two_layouts() -> None:
    assert [list(collated([{key: 1.0}])) for key in (1, True)] == [[1], [True]]
    assert type(next(iter(collated([{True: 1.0}])))) is bool


def test_equal_batches_have_equal_layouts() -> None:
    slot = np.zeros(4096, dtype=np.uint8)
    layouts = set()
    for name in ("a", "a much longer name"):
        placement = Placement()
        root = DefaultCollate(placement, [0]).plan([(torch.ones(3), name)])
        layouts.add(write(root, placement, slot).layout)
    assert len(layouts) == 1
