"""Orders: ranks, batches, occurrences, and the tails that do not divide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_protocol.messages import Dealt
from loaderd_server.core.orders import Cutting, Order, RankOrder, fault_of
from loaderd_server.core.tasks import Indices


def _order(length: int, cuts: list[int] | None = None, occurrences: bool = False) -> Order:
    indices = np.arange(100, 100 + length, dtype=np.int64)
    counted = np.arange(length, dtype=np.int64) if occurrences else None
    return Order(indices, counted, None if cuts is None else np.array(cuts, dtype=np.int64))


def _batches(view: RankOrder, drop_last: bool = False) -> list[list[int]]:
    batches = range(view.end(0, drop_last=drop_last))
    return [_list(view.samples(view.positions(b))[0]) for b in batches]


def _list(indices: Indices) -> list[int]:
    return [int(index) for index in indices]


def test_batches_are_ranges_of_the_order_and_the_last_is_short() -> None:
    view = RankOrder(_order(5), Cutting(2, drop_last=False), 0, 1)
    assert _batches(view) == [[100, 101], [102, 103], [104]]


def test_drop_last_leaves_the_short_batch_out() -> None:
    view = RankOrder(_order(5), Cutting(2, drop_last=True), 0, 1)
    assert _batches(view, drop_last=True) == [[100, 101], [102, 103]]
    assert view.batch_of(4) == 2
    assert view.batches == 3  # the short one is there for those who cut batches differently


@pytest.mark.parametrize(
    ("own", "drop_last", "end"),
    [(3, False, 4), (3, True, 3), (4, True, 2), (6, True, 3), (7, False, 4), (8, True, 0)],
)
def test_who_cuts_to_a_size_of_its_own_ends_with_the_batch_that_has_its_last_sample(
    own: int, drop_last: bool, end: int
) -> None:
    view = RankOrder(_order(7), Cutting(2, drop_last=False), 0, 1)
    assert view.end(own, drop_last=drop_last) == end


def test_a_rank_reads_every_world_size_th_index_as_distributed_sampler_does() -> None:
    view = RankOrder(_order(6), Cutting(2, drop_last=False), 1, 2)
    assert _batches(view) == [[101, 103], [105]]


def test_occurrences_are_cut_as_the_indices_are() -> None:
    view = RankOrder(_order(6, occurrences=True), Cutting(2, drop_last=False), 1, 2)
    _, occurrences = view.samples(view.positions(0))
    assert occurrences is not None
    assert _list(occurrences) == [1, 3]


def test_a_batch_sampler_s_batches_are_kept_whole_where_all_see_all() -> None:
    view = RankOrder(_order(5, cuts=[0, 3, 3, 5]), Cutting(None, drop_last=False), 0, 1)
    assert _batches(view) == [[100, 101, 102], [], [103, 104]]
    assert [view.batch_of(position) for position in range(5)] == [0, 0, 0, 2, 2]


def test_a_batch_sampler_s_batches_are_dealt_and_padded_with_the_first() -> None:
    order = _order(6, cuts=[0, 1, 3, 6])
    cutting = Cutting(None, drop_last=False)
    assert _batches(RankOrder(order, cutting, 0, 2)) == [[100], [103, 104, 105]]
    assert _batches(RankOrder(order, cutting, 1, 2)) == [[101, 102], [100]]


def test_a_batch_sampler_s_tail_is_dropped_where_asked() -> None:
    order = _order(6, cuts=[0, 1, 3, 6])
    view = RankOrder(order, Cutting(None, drop_last=True), 1, 2)
    assert _batches(view) == [[101, 102]]
    assert RankOrder(order, Cutting(None, drop_last=True), 3, 4).batches == 0


def _seen(view: RankOrder, count: int) -> list[int]:
    return _list(view.indices[:count])


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), min_size=1, max_size=3),
    st.integers(1, 7),
    st.booleans(),
)
def test_the_rest_of_an_epoch_is_dealt_anew_with_nothing_lost_and_nothing_repeated(
    length: int, history: list[tuple[int, int]], world_size: int, drop_last: bool
) -> None:
    order, cutting = _order(length), Cutting(2, drop_last=drop_last)
    seen: list[int] = []
    dealt: tuple[Dealt, ...] = ()
    for world, count in history:
        views = [RankOrder(order, cutting, rank, world, dealt) for rank in range(world)]
        for view in views:
            seen += _seen(view, count)
        dealt = (*dealt, Dealt(world, tuple(min(count, view.length) for view in views)))
    last = [RankOrder(order, cutting, rank, world_size, dealt) for rank in range(world_size)]
    rest = [index for view in last for index in _list(view.indices)]
    assert len({view.length for view in last}) == 1
    missing = length - len({*seen, *rest})
    assert missing == 0 or (drop_last and missing < world_size)
    repeated = len(rest) - len(set(rest))
    assert repeated == 0 if drop_last else repeated < max(world_size, 1)
    assert not set(seen) & set(rest)


def test_a_part_of_65536_ranks_is_taken_out_at_once() -> None:
    part = Dealt(65536, tuple(int(rank < 7) for rank in range(65536)))
    cutting = Cutting(2, drop_last=False)
    assert _list(RankOrder(_order(10), cutting, 0, 1, (part,)).indices) == [107, 108, 109]
    nothing = RankOrder(_order(10), cutting, 0, 1, (part,) * 64)  # padding gave those away too
    assert _list(nothing.indices) == []


def test_batches_of_a_batch_sampler_are_dealt_anew_whole() -> None:
    order = _order(10, cuts=[0, 1, 3, 6, 8, 10])
    cutting = Cutting(None, drop_last=False)
    view = RankOrder(order, cutting, 0, 1, (Dealt(2, (1, 1)),))
    assert _batches(view) == [[103, 104, 105], [106, 107], [108, 109]]


def test_a_padded_sample_is_the_same_sample_again() -> None:
    view = RankOrder(_order(3, occurrences=True), Cutting(2, drop_last=False), 1, 2)
    indices, occurrences = view.samples(range(2))
    assert _list(indices) == [101, 100]
    assert occurrences is not None
    assert _list(occurrences) == [1, 0]


def test_more_ranks_than_batches_go_round_until_each_has_one() -> None:
    order = _order(2, cuts=[0, 2])
    views = [RankOrder(order, Cutting(None, drop_last=False), rank, 3) for rank in range(3)]
    assert [_batches(view) for view in views] == [[[100, 101]]] * 3


def test_positions_in_a_dealt_order_count_in_the_rank_s_own_order() -> None:
    view = RankOrder(_order(6, cuts=[0, 1, 3, 6]), Cutting(None, drop_last=False), 0, 2)
    assert list(view.positions(1)) == [1, 2, 3]


@pytest.mark.parametrize("cuts", [None, [0]])
def test_an_empty_order_has_no_batches(cuts: list[int] | None) -> None:
    cutting = Cutting(4 if cuts is None else None, drop_last=False)
    assert RankOrder(_order(0, cuts), cutting, 0, 1).batches == 0


def test_the_arrays_given_to_a_task_are_its_own_and_contiguous() -> None:
    order = _order(8)
    indices, _ = RankOrder(order, Cutting(2, drop_last=False), 0, 2).samples(range(2))
    assert indices.flags.c_contiguous
    assert _list(indices) == [100, 102]


@pytest.mark.parametrize("cuts", [[1, 5], [0, 4], [0, 3, 2, 5], []])
def test_cuts_that_do_not_cover_the_order_are_a_fault(cuts: list[int]) -> None:
    fault = fault_of(_order(5, cuts), Cutting(None, drop_last=False))
    assert fault is not None
    assert "5" in fault


def test_an_order_without_batches_or_batch_size_is_a_fault() -> None:
    assert fault_of(_order(5), Cutting(None, drop_last=False)) is not None
    assert fault_of(_order(5), Cutting(2, drop_last=False)) is None


def test_occurrences_of_another_length_are_a_fault() -> None:
    order = Order(np.arange(3), np.arange(2), None)
    assert fault_of(order, Cutting(2, drop_last=False)) is not None
