"""The search for the sample that ends its worker."""

from __future__ import annotations

import pytest

from loaderd_server.core.poison import PoisonSearch


def _search(rows: int, deadly: set[int], suspect: int | None) -> tuple[int | None, int]:
    """The culprit found, and how many workers died for it."""
    search, deaths = PoisonSearch(rows, suspect), 0
    for _ in range(200):
        if search.trying is None:
            return search.culprit, deaths
        if deadly & set(search.trying):
            deaths += 1
            search.died()
        else:
            search.survived()
    raise AssertionError("the search does not end")


def test_the_row_that_was_begun_last_is_tried_alone_first() -> None:
    assert PoisonSearch(8, 5).trying == range(5, 6)
    assert _search(8, {5}, suspect=5) == (5, 1)


@pytest.mark.parametrize("deadly", range(9))
def test_without_a_suspect_the_batch_is_halved_until_one_row_is_left(deadly: int) -> None:
    culprit, deaths = _search(9, {deadly}, suspect=None)
    assert culprit == deadly
    assert deaths <= 4


def test_an_innocent_suspect_does_not_stop_the_search() -> None:
    assert _search(8, {2}, suspect=6)[0] == 2


def test_where_no_row_does_it_alone_the_search_gives_up() -> None:
    assert _search(8, set(), suspect=3) == (None, 0)
    assert _search(1, set(), suspect=None) == (None, 0)


def test_a_suspect_outside_the_batch_is_no_suspect() -> None:
    assert PoisonSearch(4, 9).trying == range(2)
    assert PoisonSearch(4, -1).trying == range(2)


def test_of_two_culprits_one_is_found() -> None:
    assert _search(8, {1, 6}, suspect=None)[0] in {1, 6}
