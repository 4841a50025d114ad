"""The gate: opens by the last awaited trainer or by time, and closes behind the last that leaves."""

from __future__ import annotations

from loaderd_server.core.gate import Gate


def test_it_opens_once_by_the_last_that_is_awaited() -> None:
    gate = Gate(3, None)
    assert not gate.arrived(1, 0.0)
    assert not gate.arrived(2, 9.0)
    assert not gate.is_open
    assert gate.arrived(3, 10.0)
    assert gate.is_open
    assert not gate.arrived(4, 11.0)  # it was open


def test_the_time_runs_from_the_first_arrival() -> None:
    gate = Gate(3, 5.0)
    assert gate.deadline is None
    assert not gate.is_late(100.0)  # nobody waits
    gate.arrived(1, 100.0)
    gate.arrived(2, 104.0)
    assert gate.deadline == 105.0
    assert not gate.is_late(104.9)
    assert gate.is_late(105.0)
    assert gate.is_open
    assert not gate.is_late(106.0)  # it was said


def test_without_a_time_it_waits_for_ever() -> None:
    gate = Gate(2, None)
    gate.arrived(1, 0.0)
    assert gate.deadline is None
    assert not gate.is_late(1e9)


def test_after_all_have_left_trainers_are_awaited_anew() -> None:
    gate = Gate(2, 5.0)
    gate.arrived(1, 0.0)
    gate.arrived(2, 1.0)
    gate.close()
    assert not gate.is_open
    assert not gate.is_late(50.0)
    gate.arrived(1, 60.0)
    assert gate.deadline == 65.0


def test_a_gate_of_one_or_none_is_open_and_stays_so() -> None:
    for count in (0, 1):
        gate = Gate(count, 5.0)
        gate.close()
        assert gate.is_open
        assert not gate.is_late(100.0)
