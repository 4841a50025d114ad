"""Faults planted in what trainers were given: each is found, and named with its place."""

from __future__ import annotations

import pytest

from loaderd_protocol.audits import SeenBatch
from loaderd_server.audit.compare import (
    Broken,
    Rule,
    compare,
    compare_queue,
    first_difference,
)
from loaderd_server.audit.expected import Expected, Unit

SIZE = 3
UNITS = [Unit(f"d{position}", 100 + position, position) for position in range(11)]
GOOD = [unit.digest for unit in UNITS]


def expected(units: list[Unit] | None = None, errors: tuple[str, ...] = ()) -> Expected:
    made = UNITS if units is None else units
    return Expected(tuple(tuple(made[i : i + SIZE]) for i in range(0, len(made), SIZE)), errors)


def seen(digests: list[str], size: int = SIZE) -> list[SeenBatch]:
    return [SeenBatch(0, tuple(digests[i : i + size])) for i in range(0, len(digests), size)]


def found(digests: list[str]) -> tuple[Broken, ...]:
    return compare(expected(), seen(digests))


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert found(GOOD) == ()


def test_swapped_rows_are_found() -> None:
    swapped = [*GOOD[:4], GOOD[5], GOOD[4], *GOOD[6:]]
    assert found(swapped) == (Broken(Rule.ORDER, 4, 104, "d4", "d5", 2, "index 105 stands there"),)


@pytest.mark.parametrize("at", [0, 5])
def test_a_lost_row_is_found_alone_though_all_behind_it_move(at: int) -> None:
    lost = GOOD[:at] + GOOD[at + 1 :]
    assert found(lost) == (Broken(Rule.LOST, at, 100 + at, f"d{at}"),)


@pytest.mark.parametrize("at", [0, 5, 10])
def test_a_repeated_row_is_found_alone_though_all_behind_it_move(at: int) -> None:
    repeated = [*GOOD[: at + 1], *GOOD[at:]]
    assert found(repeated) == (Broken(Rule.REPEATED, at + 1, 100 + at, found=f"d{at}"),)


def test_a_row_in_anothers_place_is_one_lost_and_one_repeated() -> None:
    replaced = [*GOOD[:6], GOOD[2], *GOOD[7:]]
    assert [(b.rule, b.position, b.index) for b in found(replaced)] == [
        (Rule.LOST, 6, 106),
        (Rule.REPEATED, 6, 102),
    ]


def test_a_wrong_byte_is_found_and_is_no_lost_row() -> None:
    wrong = [*GOOD[:7], "other", *GOOD[8:]]
    assert found(wrong) == (Broken(Rule.WRONG_BYTES, 7, 107, "d7", "other"),)


def test_a_wrong_byte_beside_a_lost_row_hides_neither() -> None:
    both = ["other", *GOOD[1:6], *GOOD[7:]]
    assert [(b.rule, b.position) for b in found(both)] == [
        (Rule.WRONG_BYTES, 0),
        (Rule.LOST, 6),
    ]


@pytest.mark.parametrize("length", [0, 9, 10])
def test_a_short_epoch_is_found(length: int) -> None:
    (broken,) = found(GOOD[:length])
    assert (broken.rule, broken.position, broken.index) == (Rule.SHORT, length, 100 + length)
    assert broken.count == 11 - length


def test_right_rows_in_batches_of_another_size_are_found() -> None:
    (broken,) = compare(expected(), seen(GOOD, size=4))
    assert broken.rule is Rule.CUT
    assert broken.text() == "a batch of another size; batch 0 has 4 rows, not 3"


def test_an_order_that_has_an_index_twice_asks_for_it_twice() -> None:
    units = [*UNITS[:3], Unit("d1", 101, 3)]
    assert compare(expected(units), seen([*GOOD[:3], "d1"])) == ()
    (broken,) = compare(expected(units), seen(GOOD[:3]))
    assert (broken.rule, broken.position) == (Rule.SHORT, 3)


def test_an_error_that_the_reference_does_not_have_is_found() -> None:
    given = [*seen(GOOD), SeenBatch(0, (), "ValueError: broken")]
    (broken,) = compare(expected(), given)
    assert (broken.rule, broken.detail) == (Rule.ERROR, "ValueError: broken")


def test_a_failed_batch_must_be_told() -> None:
    failing = expected(UNITS[:3], errors=("index 7: broken",))
    assert compare(failing, [*seen(GOOD[:3]), SeenBatch(0, (), "ValueError: broken")]) == ()
    (broken,) = compare(failing, seen(GOOD[:3]))
    assert (broken.rule, broken.detail) == (Rule.NO_ERROR, "index 7: broken")


def test_a_line_that_only_reports_failures_is_no_batch() -> None:
    assert compare(expected(), [*seen(GOOD), SeenBatch(0, ())]) == ()


def test_a_text_names_place_index_and_both_digests() -> None:
    text = Broken(Rule.WRONG_BYTES, 7, 107, "d7", "other", 2).text()
    assert text == (
        "bytes that no sample of this epoch has; position 7; index 107; expected d7, found other; "
        "2 of this kind"
    )


# --- queues -------------------------------------------------------------------------------------


def queue_finds(batches: list[SeenBatch]) -> tuple[Broken, ...]:
    return compare_queue([expected()], batches)


def test_batches_of_a_queue_may_go_to_anyone_in_any_order() -> None:
    assert queue_finds(seen(GOOD)[::-1]) == ()


def test_a_batch_that_no_trainer_of_a_queue_was_given_is_found() -> None:
    batches = seen(GOOD)
    assert queue_finds(batches[:1] + batches[2:]) == (Broken(Rule.LOST, 3, 103, "d3"),)


def test_a_batch_that_two_trainers_of_a_queue_were_given_is_found() -> None:
    batches = seen(GOOD)
    (broken,) = queue_finds([*batches, batches[2]])
    assert (broken.rule, broken.position, broken.index) == (Rule.REPEATED, 6, 106)


def test_wrong_bytes_in_a_queue_are_found() -> None:
    batches = seen(GOOD)
    broken = queue_finds([SeenBatch(0, ("d0", "d1", "other")), *batches[1:]])
    assert [b.rule for b in broken] == [Rule.LOST, Rule.WRONG_BYTES]


def test_each_epoch_of_a_queue_asks_for_each_batch() -> None:
    both = [expected(), expected()]
    assert compare_queue(both, seen(GOOD) * 2) == ()
    assert [b.rule for b in compare_queue(both, seen(GOOD))] == [Rule.LOST]


# --- beside each other --------------------------------------------------------------------------


def test_equal_rows_may_be_cut_differently() -> None:
    assert first_difference(seen(GOOD), seen(GOOD, size=5)) is None


def test_one_that_drops_its_last_batch_has_no_other_rows() -> None:
    assert first_difference(seen(GOOD), seen(GOOD[:10], size=5)) is None


def test_unequal_rows_are_found() -> None:
    other = [*GOOD[:7], "other", *GOOD[8:]]
    broken = first_difference(seen(GOOD), seen(other))
    assert broken == Broken(Rule.UNEQUAL, 7, expected="d7", found="other")
