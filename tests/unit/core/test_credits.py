"""Credits: fair shares, newcomers, and grants that are lowered without stranding anyone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderd_server.core.credits import (
    Ledger,
    cost,
    fair_shares,
    is_stranded,
    lend,
    take_back_promise,
)
from loaderd_server.core.sequences import Cursor, Cut, Sequence
from loaderd_server.core.settings import Mode, StreamSettings
from loaderd_server.core.streams import Stream


def _ledger(slots: int, workers: int = 1) -> Ledger:
    ledger = Ledger(workers)
    ledger.slots = slots
    return ledger


def _cursor(want: int = 4) -> Cursor:
    settings = StreamSettings("s", "d", Mode.BROADCAST, 0, 4, drop_last=False)
    return Cursor(1, 0, Sequence(Stream(settings, 1, 1 << 20), 0, 0, 1), want, 0, Cut())


def _joined(ledger: Ledger, want: int = 4) -> Cursor:
    cursor = _cursor(want)
    ledger.join(cursor)
    ledger.settle(may_take=True)
    return cursor


def test_everybody_gets_what_they_want_where_there_is_enough() -> None:
    assert fair_shares([4, 2, 6], 20) == [4, 2, 6]


def test_what_is_short_is_shared_evenly_and_the_rest_goes_to_the_first() -> None:
    assert fair_shares([4, 4, 4], 8) == [3, 3, 2]
    assert fair_shares([9, 1, 9], 7) == [3, 1, 3]


def test_nobody_s_share_is_under_one() -> None:
    assert fair_shares([4, 4], 0) == [1, 1]


@given(st.lists(st.integers(1, 70), max_size=12), st.integers(0, 200))
def test_shares_use_all_there_is_and_no_more(wants: list[int], available: int) -> None:
    shares = fair_shares(wants, available)
    assert all(1 <= share <= want for share, want in zip(shares, wants, strict=True))
    assert sum(shares) == max(len(wants), min(available, sum(wants)))


def test_a_newcomer_gets_what_it_wants_from_what_is_free() -> None:
    ledger = _ledger(slots=10)
    assert [_joined(ledger).grant, _joined(ledger).grant] == [4, 4]
    assert ledger.used() == 8 == ledger.most


def test_a_newcomer_takes_from_others_what_they_have_not_in_hand() -> None:
    ledger = _ledger(slots=6)
    first = _joined(ledger)
    second = _joined(ledger)
    assert (first.grant, second.grant) == (2, 2)


def test_nothing_is_taken_while_more_slots_are_on_their_way() -> None:
    ledger = _ledger(slots=7)
    first, second = _joined(ledger), _cursor()
    ledger.join(second)
    ledger.settle(may_take=False)
    assert (first.grant, second.grant) == (4, 1)


def test_what_a_trainer_has_in_hand_is_not_given_to_another() -> None:
    ledger = _ledger(slots=6)
    first = _joined(ledger)
    first.outstanding = 4
    second = _joined(ledger)
    assert second in ledger.waiting
    assert ledger.is_tight


def test_a_newcomer_comes_in_as_others_give_back() -> None:
    ledger = _ledger(slots=6)
    first = _joined(ledger)
    first.outstanding = 4
    second = _joined(ledger)
    for _ in range(2):
        first.outstanding -= 1
        take_back_promise(first)
        ledger.settle(may_take=True)
    assert second.grant == 1
    assert ledger.used() <= ledger.most


def test_a_trainer_that_keeps_views_of_all_but_one_is_lent_one_credit() -> None:
    ledger = _ledger(slots=6)
    first = _joined(ledger)
    first.outstanding = 3
    second = _joined(ledger)
    assert first.grant == 2
    assert is_stranded(first)
    assert second in ledger.waiting
    lend(first)
    assert first.grant == 4
    ledger.settle(may_take=True)
    assert first.grant == 4
    assert ledger.used() == 4


def test_a_lent_credit_is_taken_back_with_the_views() -> None:
    ledger = _ledger(slots=6)
    first = _joined(ledger)
    first.outstanding = 3
    second = _joined(ledger)
    lend(first)
    first.outstanding = 1
    take_back_promise(first)
    ledger.settle(may_take=True)
    assert (first.grant, second.grant) == (2, 2)
    assert cost(first) == 2


def test_what_a_gone_cursor_has_in_hand_still_counts() -> None:
    ledger = _ledger(slots=6)
    first = _joined(ledger)
    first.outstanding = 3
    ledger.leave(first)
    second = _joined(ledger)
    assert (ledger.orphans, second.grant) == (3, 1)


def test_grants_rise_again_when_trainers_leave() -> None:
    ledger = _ledger(slots=6)
    first, second = _joined(ledger), _joined(ledger)
    ledger.leave(second)
    changes = ledger.settle(may_take=True)
    assert first.grant == 4
    assert changes.changed == (first,)
    assert not ledger.is_tight


@pytest.mark.parametrize("seed", range(40))
def test_grants_never_pass_the_slots_whatever_trainers_do(seed: int) -> None:
    draws = np.random.default_rng(seed)
    ledger = _ledger(slots=int(draws.integers(3, 30)), workers=1)
    everyone: list[Cursor] = []
    for _ in range(60):
        kind = draws.integers(5)
        if kind == 0 and len(everyone) < 6:
            everyone.append(_joined(ledger, int(draws.integers(2, 9))))
        for cursor in everyone:
            if kind == 1 and cursor.outstanding < cursor.grant:
                cursor.outstanding += 1
            elif kind in (2, 3) and cursor.outstanding > draws.integers(4):
                cursor.outstanding -= 1
                take_back_promise(cursor)
            elif kind == 4 and is_stranded(cursor):
                lend(cursor)
        ledger.settle(may_take=bool(draws.integers(2)))
        assert ledger.used() <= ledger.most
        assert all(c.outstanding <= cost(c) for c in ledger.admitted)
        assert all(c.grant >= 1 for c in ledger.admitted)
