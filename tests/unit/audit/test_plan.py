"""What is asked of an audit: refused with what is wrong, or turned into trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loaderd_server.audit.expected import SequenceKey
from loaderd_server.audit.failure import AuditFailed
from loaderd_server.audit.plan import AuditRequest, stream_of, trainers_of
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.config import Config
from loaderd_server.config_file import parse_config


def config(**stream: Any) -> Config:
    settings = {"dataset": {"target": "m:d"}, "batch_size": 4, "seed": 5, **stream}
    return parse_config({"streams": {"train": settings}})


def asked(stream: str = "train", **changes: Any) -> AuditRequest:
    return AuditRequest(Path("cfg.yaml"), stream, **changes)


@pytest.mark.parametrize(
    ("stream", "request_", "says"),
    [
        ({}, asked("tain"), "there is no stream 'tain'; there is train"),
        (
            {},
            asked(world_size=2),
            "stream 'train' is broadcast; ranks count in streams of mode shard",
        ),
        ({"mode": "shard"}, asked(world_size=3, trainers=2), "2 trainers cannot be 3 ranks"),
        ({"mode": "queue"}, asked(address=Path("/run/x")), "would take batches from its trainers"),
        ({}, asked(trainers=0), "0 trainers; from 1 to 64 can be run"),
        ({}, asked(trainers=65), "65 trainers; from 1 to 64 can be run"),
        ({}, asked(batch_sizes=(4, 0)), "0 is too few"),
        ({}, asked(epochs=0), "0 is too few"),
        ({}, asked(workers=()), "no number of workers is given"),
        ({"await_trainers": {"count": 3}}, asked(), "awaits 3 trainers .* give --trainers 3"),
    ],
)
def test_what_cannot_be_audited_so_is_refused(
    stream: dict[str, Any], request_: AuditRequest, says: str
) -> None:
    with pytest.raises(AuditFailed, match=says) as failed:
        stream_of(request_, config(**stream))
    assert failed.value.code is ExitCode.CONFIG


def test_batches_that_cannot_be_cut_are_refused_in_another_size() -> None:
    streams = config().streams["train"]
    with pytest.raises(AuditFailed, match=r"batch sizes 4, 3: .* cannot be cut"):
        trainers_of(asked(batch_sizes=(4, 3)), streams, whole=True)
    assert len(trainers_of(asked(batch_sizes=(4,)), streams, whole=True)) == 2


def test_batch_sizes_go_round() -> None:
    trainers = trainers_of(
        asked(trainers=3, batch_sizes=(4, 7)), config().streams["train"], whole=False
    )
    assert [trainer.cut.size for trainer in trainers] == [4, 7, 4]
    assert [trainer.has_own_size for trainer in trainers] == [False, True, False]
    assert {trainer.sequence for trainer in trainers} == {SequenceKey(5)}


def test_ranks_go_round() -> None:
    streams = config(mode="shard").streams["train"]
    assert len(trainers_of(asked(world_size=3), streams, whole=False)) == 3
    trainers = trainers_of(asked(world_size=2, trainers=4), streams, whole=False)
    assert [trainer.sequence.rank for trainer in trainers] == [0, 1, 0, 1]


def test_independent_trainers_have_orders_of_their_own() -> None:
    trainers = trainers_of(asked(), config(mode="independent").streams["train"], whole=False)
    assert [trainer.sequence.seed for trainer in trainers] == [5, 6]
