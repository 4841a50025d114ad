"""A queue's line beside a plain model: each batch waits, is out with one trainer, or is over."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.driver import settings_of

from loaderd_server.core.orders import Cutting, Order, RankOrder
from loaderd_server.core.queueing import Line
from loaderd_server.core.sequences import Cursor, Cut, Epoch, Sequence
from loaderd_server.core.settings import Mode
from loaderd_server.core.streams import Stream

BATCHES = 10
TRAINERS = 3


def _line(credits_each: int = 4) -> tuple[Line, list[Cursor], Epoch]:
    """A line of ten batches, and trainers that are at it."""
    stream = Stream(settings_of(mode=Mode.QUEUE).streams[0], 1, 1 << 30)
    sequence = Sequence(stream, 0, 0, 1)
    order = Order(np.arange(BATCHES, dtype=np.int64), None, None)
    epoch = Epoch(sequence, 0, RankOrder(order, Cutting(1, drop_last=False), 0, 1))
    cursors = [Cursor(lease, 0, sequence, 4, 0, Cut()) for lease in range(TRAINERS)]
    for cursor in cursors:
        cursor.place(epoch, 0)
        cursor.grant = credits_each
    return Line(epoch, BATCHES), cursors, epoch


class _Model:
    """What a reader of docs/sharing.md would keep a list of."""

    def __init__(self) -> None:
        self.waiting = set(range(BATCHES))
        self.over: set[int] = set()
        self.handed: list[list[int]] = [[] for _ in range(TRAINERS)]
        self.counts = [0] * TRAINERS

    def undone(self, who: int) -> list[int]:
        return self.handed[who][self.counts[who] :]

    def forget(self, who: int) -> list[int]:
        undone = self.undone(who)
        self.handed[who], self.counts[who] = [], 0
        return undone

    def done(self, who: int, count: int) -> None:
        count = min(count, len(self.handed[who]))
        if count > self.counts[who]:
            self.over.update(self.handed[who][self.counts[who] : count])
            self.counts[who] = count


_WHO = st.integers(0, TRAINERS - 1)
_DEEDS = st.one_of(
    st.tuples(st.just("hand"), _WHO, st.just(0), st.just(0)),
    st.tuples(st.just("done"), _WHO, st.integers(-3, 12), st.just(0)),
    st.tuples(st.sampled_from(["back", "lost"]), _WHO, st.just(0), st.just(0)),
    st.tuples(st.just("skip"), st.just(0), st.integers(-3, 14), st.integers(-3, 14)),
)


def _do(line: Line, cursors: list[Cursor], model: _Model, deed: tuple[str, int, int, int]) -> None:
    what, who, first, end = deed
    if what == "hand":
        batch = next(line.waiting(1), None)
        assert batch == min(model.waiting, default=None)
        if batch is not None:
            line.hand(batch, cursors[who])
            model.waiting.remove(batch)
            model.handed[who].append(batch)
    elif what == "done":
        line.done(cursors[who], first)
        model.done(who, first)
    elif what == "back":
        back = model.forget(who)
        assert line.take_back(cursors[who]) == back
        model.waiting.update(back)
    elif what == "lost":
        lost = model.forget(who)
        assert line.give_up(cursors[who]) == lost
        model.over.update(lost)
    else:
        line.skip((first, end))
        done = model.waiting & set(range(first, end))
        model.waiting -= done
        model.over |= done


@settings(deadline=None, max_examples=300)
@given(st.lists(_DEEDS, min_size=8, max_size=60))
def test_a_batch_waits_is_with_one_trainer_or_is_over(
    deeds: list[tuple[str, int, int, int]],
) -> None:
    line, cursors, _ = _line()
    model = _Model()
    for deed in deeds:
        _do(line, cursors, model, deed)
        assert list(line.waiting(BATCHES)) == sorted(model.waiting)
        assert line.left == BATCHES - len(model.over)
        assert line.is_over == (len(model.over) == BATCHES)
        assert [c.has_undone for c in cursors] == [bool(model.undone(n)) for n in range(TRAINERS)]
        for batch in range(BATCHES):
            ahead = sum(waiting < batch for waiting in model.waiting)
            distance = line.distance(batch)
            assert (distance is None) == (batch in model.over)
            if batch in model.waiting:
                assert distance is not None
                assert (distance == 0) == (ahead == 0)
                assert distance >= ahead


def test_no_more_is_made_than_trainers_have_credits_for() -> None:
    line, cursors, epoch = _line(credits_each=1)
    assert (line.next_missing(), line.missing()) == (0, 3)
    assert [line.is_wanted(batch) for batch in range(4)] == [True, True, True, False]
    cursors[0].outstanding = 1
    cursors[1].leave()
    assert line.missing() == 1
    cursors[2].leave()
    assert (line.next_missing(), line.missing(), line.hungriest()) == (None, 0, None)
    assert epoch.cursors == [cursors[0]]


def test_who_has_the_fewest_in_hand_is_next_then_who_was_served_longest_ago() -> None:
    line, cursors, _ = _line()
    for cursor, outstanding, tick in zip(cursors, (1, 0, 0), (0, 8, 7), strict=True):
        cursor.outstanding, cursor.served_tick = outstanding, tick
    assert line.hungriest() is cursors[2]
    cursors[2].outstanding = 4
    assert line.hungriest() is cursors[1]


def test_a_line_without_batches_is_over() -> None:
    _, _, epoch = _line()
    assert Line(epoch, 0).is_over
    assert Line(epoch, 0).distance(0) is None
