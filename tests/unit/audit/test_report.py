"""Reports: what was checked in words, and in JSON."""

from __future__ import annotations

import json

from loaderd_server.audit.compare import Broken, Rule
from loaderd_server.audit.expected import SequenceKey
from loaderd_server.audit.report import AuditReport, GroupCheck, OrderCheck, TrainerCheck

ORDER = OrderCheck(0, 0, 2000, 2000, 2000, 1, must_be_once=True)


def trainer(*broken: Broken, left_out: int = 0, errors: int = 0) -> TrainerCheck:
    return TrainerCheck(
        3, 1, 0, SequenceKey(0), 48, 42, 2000, left_out, errors, whole=False, broken=broken
    )


def test_a_right_report_tells_what_was_checked() -> None:
    group = GroupCheck("1 and 3 workers: trainers were given equal bytes")
    report = AuditReport("train", "broadcast", (ORDER,), (trainer(),), (group,))
    assert report.is_right
    assert report.text().splitlines() == [
        "audit of stream 'train' (broadcast)",
        "epoch 0, seed 0: 2000 samples, each index once",
        "  trainer 1 (batch 48, 3 workers): 42 batches, 2000 rows, all equal in order",
        "1 and 3 workers: trainers were given equal bytes",
        "every rule holds",
    ]


def test_a_broken_rule_is_told_with_trainer_and_epoch() -> None:
    broken = Broken(Rule.LOST, 4, 17, "aa")
    text = AuditReport("train", "broadcast", (ORDER,), (trainer(broken),), ()).text()
    assert "NOT as the reference has them\n    BROKEN trainer 1, epoch 0: never given" in text
    assert text.endswith("BROKEN: 1 findings")


def test_an_order_that_lacks_an_index_breaks_a_rule_where_the_sampler_promised_it() -> None:
    promised = OrderCheck(1, 0, 10, 10, 9, 2, must_be_once=True)
    assert [broken.rule for broken in promised.broken] == [Rule.NOT_ONCE]
    assert promised.text() == "epoch 1, seed 0: 10 samples, 9 of 10 indices, at most 2 times each"
    assert OrderCheck(1, 0, 10, 10, 9, 2, must_be_once=False).broken == ()
    report = AuditReport("train", "broadcast", (promised,), (), ())
    assert not report.is_right
    assert "BROKEN epoch 1: the order does not hold each index once" in report.text()


def test_a_broken_group_names_its_places() -> None:
    group = GroupCheck("all equal", (Broken(Rule.UNEQUAL, 3),), ("trainers 0 and 1, epoch 0",))
    assert group.text() == (
        "BROKEN trainers 0 and 1, epoch 0: not equal to what another one was given; position 3"
    )


def test_what_was_left_out_and_what_failed_is_counted() -> None:
    text = trainer(left_out=3, errors=2).text()
    assert "2000 rows, 3 samples left out as failed, 2 batches failed, all equal" in text


def test_the_document_has_every_check() -> None:
    report = AuditReport("train", "broadcast", (ORDER,), (trainer(Broken(Rule.LOST, 4)),), ())
    document = json.loads(report.json())
    assert document["is_right"] is False
    assert document["trainers"][0]["broken"][0]["rule"] == "lost"
    assert document["orders"][0]["drawn"] == 2000
    assert document["text"] == report.text()
