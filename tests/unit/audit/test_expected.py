"""What a trainer must be given, by arithmetic on the reference."""

from __future__ import annotations

from loaderd_server.audit.expected import Cut, EpochReference, Expected, ReferenceBatch, expect

MADE = 4


def reference(
    length: int = 10, left_out: tuple[int, ...] = (), failing: tuple[int, ...] = ()
) -> EpochReference:
    """Position p holds index 100 + p with the digest "dp"; ``failing`` are numbers of batches."""
    batches = []
    for number, first in enumerate(range(0, length, MADE)):
        positions = range(first, min(first + MADE, length))
        digests = tuple("" if p in left_out else f"d{p}" for p in positions)
        failure = f"batch {number}" if number in failing else ""
        indices = tuple(100 + p for p in positions)
        batches.append(ReferenceBatch(first, indices, () if failure else digests, failure))
    return EpochReference(length, length, length, 1, tuple(batches))


def positions(expected: Expected) -> list[list[int]]:
    assert all(unit.digest == f"d{unit.position}" for unit in expected.units)
    assert all(unit.index == 100 + unit.position for unit in expected.units)
    return [[unit.position for unit in batch] for batch in expected.batches]


def own(size: int | None, *, drop_last: bool = False) -> Cut:
    return Cut(size, MADE, drop_last)


def test_batches_of_the_streams_size_are_the_streams() -> None:
    assert positions(expect(reference(), own(4))) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_own_size_cuts_across_the_streams_batches() -> None:
    assert positions(expect(reference(), own(3))) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert positions(expect(reference(), own(16))) == [list(range(10))]


def test_drop_last_counts_in_the_trainers_own_size() -> None:
    assert positions(expect(reference(), own(4, drop_last=True))) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert positions(expect(reference(), own(5, drop_last=True))) == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
    ]
    assert positions(expect(reference(), own(16, drop_last=True))) == []


def test_left_out_samples_shorten_a_batch_and_an_empty_one_is_passed_over() -> None:
    made = reference(left_out=(1, 6, 7, 8))
    assert positions(expect(made, own(2))) == [[0], [2, 3], [4, 5], [9]]


def test_batches_that_touch_a_failed_one_are_not_given_and_the_failure_is_told() -> None:
    expected = expect(reference(failing=(1,)), own(3))
    assert positions(expected) == [[0, 1, 2], [9]]
    assert expected.errors == ("batch 1",)


def test_a_failed_batch_that_drop_last_leaves_out_is_not_asked_for() -> None:
    assert expect(reference(failing=(2,)), own(4, drop_last=True)).errors == ()


def test_whole_batches_are_units() -> None:
    batches = (
        ReferenceBatch(0, (5, 6), ("a",)),
        ReferenceBatch(2, (7, 8), ()),
        ReferenceBatch(4, (9,), ("c",)),
    )
    made = EpochReference(5, 5, 5, 1, batches)
    units = expect(made, Cut(2, 2, drop_last=False, whole=True)).units
    assert [(unit.digest, unit.index, unit.position) for unit in units] == [
        ("a", 5, 0),
        ("c", 9, 2),
    ]
    dropped = expect(made, Cut(2, 2, drop_last=True, whole=True)).units
    assert [unit.digest for unit in dropped] == ["a"]


def test_batches_of_a_sampler_are_taken_as_they_are() -> None:
    batches = (
        ReferenceBatch(0, (100,), ("d0",)),
        ReferenceBatch(1, (101, 102, 103), ("d1", "d2", "d3")),
        ReferenceBatch(4, (104, 105), ("d4", "d5")),
    )
    made = EpochReference(6, 6, 6, 1, batches)
    assert positions(expect(made, Cut(None, None, drop_last=True))) == [[0], [1, 2, 3], [4, 5]]


def test_an_epoch_without_samples_asks_for_nothing() -> None:
    assert expect(reference(0), own(3)) == Expected(())
