"""Garbage, other versions and foreign tokens are refused and logged, and nobody else notices."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.raw_trainer import RawTrainer, raw_trainer
from tests.support.serving import Daemon, serving

import loaderd
from loaderd_protocol.codec import encode
from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import (
    Announce,
    AskStatus,
    Attach,
    Hello,
    Ping,
    Pong,
    Refused,
    Rejected,
    Release,
    Start,
    Status,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from loaderd_protocol.rules import Message

CONFIG = """
workers: {count: 1}
datasets: {rows: {target: "tests.support.case_datasets:Counting", args: {length: 40}}}
streams:
  train: {dataset: rows, batch_size: 4, sampler: sequential}
  ranks: {dataset: rows, batch_size: 4, mode: shard}
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with serving(CONFIG, tmp_path_factory.mktemp("sockets")) as served:
        yield served


@pytest.fixture(autouse=True)
def _the_daemon_serves_on(daemon: Daemon, _nothing_is_left_behind: None) -> Iterator[None]:
    """Whatever a test sends, a right trainer beside it gets every batch."""
    with loaderd.connect("train", address=daemon.run_dir, timeout_s=20) as loader:
        iterator = iter(loader)
        next(iterator)
        yield
        assert [int(batch[0, 0]) for batch in iterator] == list(range(4, 40, 4))
    assert daemon.process.poll() is None


def ready(daemon: Daemon, trainer: RawTrainer) -> None:
    trainer.hello(trainer.attach().token)


@pytest.mark.parametrize("packet", [b"garbage", b"\xc1", b"\x91\x05", b"\x00" * 4000, b"\xff" * 9])
def test_garbage_on_the_lease_ends_that_lease(daemon: Daemon, packet: bytes) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        trainer.lease.send(packet)
        answer = trainer.hear_lease()
        assert isinstance(answer, Rejected)
        assert answer.code == ErrorCode.PROTOCOL
        assert trainer.hear_lease() is None


def test_garbage_after_attach_ends_the_lease(daemon: Daemon) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        trainer.attach()
        trainer.lease.send(b"garbage")
        assert trainer.hear_lease() is None


def test_another_version_is_refused_with_both_numbers(daemon: Daemon) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        trainer.lease.send(encode(Attach(99, "raw")))
        answer = trainer.hear_lease()
        assert isinstance(answer, Rejected)
        assert answer.code == ErrorCode.VERSION
        assert "99" in answer.text
        assert "1" in answer.text


def test_descriptors_sent_to_the_daemon_do_not_stay_open_there(daemon: Daemon) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        trainer.attach()
        reading, writing = os.pipe()
        socket.send_fds(trainer.lease, [encode(Ping(1))], [writing])
        os.close(writing)
        assert trainer.hear_lease() == Pong(1)
        # The pipe's end shows that no other process has its writing end.
        assert os.read(reading, 1) == b""
        os.close(reading)


@pytest.mark.parametrize("token", [b"", b"x" * 16, b"y" * 100])
def test_a_foreign_token_opens_nothing(daemon: Daemon, token: bytes) -> None:
    with raw_trainer(daemon.run_dir) as stranger, raw_trainer(daemon.run_dir) as other:
        stranger.say(Hello(token))
        stranger.say(AskStatus(1))
        ready(daemon, other)
        other.say(AskStatus(2))
        assert isinstance(other.hear(), Status)
        assert stranger.dealer.poll(0) == 0


def test_a_token_binds_one_identity_only(daemon: Daemon) -> None:
    with raw_trainer(daemon.run_dir) as owner, raw_trainer(daemon.run_dir) as thief:
        token = owner.attach().token
        owner.hello(token)
        thief.say(Hello(token))
        thief.say(AskStatus(1))
        owner.say(AskStatus(2))
        assert isinstance(owner.hear(), Status)
        assert thief.dealer.poll(0) == 0


def test_a_token_dies_with_its_lease(daemon: Daemon) -> None:
    with raw_trainer(daemon.run_dir) as first, raw_trainer(daemon.run_dir) as second:
        token = first.attach().token
        first.lease.close()
        second.attach()
        second.lease.send(encode(Ping(1)))
        assert second.hear_lease() == Pong(1)
        second.say(Hello(token))
        second.say(AskStatus(1))
        assert second.dealer.poll(200) == 0


REFUSED: list[tuple[Message, ErrorCode, str]] = [
    (Subscribe(0, "nothing", 0, 1, 2, 0), ErrorCode.UNKNOWN_STREAM, "train"),
    (Subscribe(0, "ranks", 3, 3, 2, 0), ErrorCode.REFUSED, "rank"),
    (Subscribe(0, "ranks", -1, 3, 2, 0), ErrorCode.REFUSED, "rank"),
    (Subscribe(0, "ranks", 0, 0, 2, 0), ErrorCode.REFUSED, "world_size"),
    (Subscribe(0, "ranks", 0, 2**62, 2, 0), ErrorCode.REFUSED, "world_size"),
    (Subscribe(0, "train", 0, 1, 2, -1), ErrorCode.REFUSED, "epoch"),
    (Subscribe(0, "train", 0, 1, 2, 2**62), ErrorCode.REFUSED, "epoch"),
]


@pytest.mark.parametrize(("message", "code", "says"), REFUSED, ids=lambda v: str(v)[:60])
def test_what_cannot_be_subscribed_is_refused(
    daemon: Daemon, message: Message, code: ErrorCode, says: str
) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        ready(daemon, trainer)
        trainer.say(message)
        answer = trainer.hear()
        assert isinstance(answer, Refused)
        assert answer.code == code
        assert says in answer.text


def test_an_announcement_is_released_only_by_the_right_release(daemon: Daemon) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        ready(daemon, trainer)
        trainer.say(Subscribe(7, "train", 0, 1, 0, 0))
        subscribed = trainer.hear()
        assert isinstance(subscribed, Subscribed)
        trainer.say(Start(7, 1, 0, 0))
        heard = [trainer.hear() for _ in range(1 + subscribed.credits)]
        announced = [message for message in heard if isinstance(message, Announce)]
        assert [message.batch for message in announced] == list(range(subscribed.credits))
        first = announced[0]
        for wrong in (
            Release(7, first.slot, first.generation + 1),
            Release(8, first.slot, first.generation),
            Release(7, 4_000_000_000, first.generation),
        ):
            trainer.lease.send(encode(wrong))
        trainer.lease.send(encode(Ping(1)))
        assert trainer.hear_lease() == Pong(1)
        assert trainer.dealer.poll(100) == 0
        trainer.lease.send(encode(Release(7, first.slot, first.generation)))
        following = trainer.hear()
        assert isinstance(following, Announce)
        assert following.batch == subscribed.credits


small = st.integers(-2, 9)
numbers = st.one_of(small, st.sampled_from([2**31, 2**32, 2**62, -(2**62)]))
unsigned = st.one_of(st.integers(0, 9), st.just(2**32 - 1))
said: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        Subscribe, small, st.sampled_from(["train", "ranks", "", "?"]), numbers, numbers, numbers,
        numbers,
    ),
    st.builds(Start, small, numbers, numbers, numbers),
    st.builds(Unsubscribe, small),
    st.builds(Release, unsigned, unsigned, unsigned),
    st.binary(max_size=40),
)  # fmt: skip


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(messages=st.lists(said, max_size=30))
def test_any_conversation_harms_nobody(daemon: Daemon, messages: list[Any]) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        ready(daemon, trainer)
        for message in messages:
            if isinstance(message, Release):
                trainer.lease.send(encode(message))
            else:
                frame = message if isinstance(message, bytes) else encode(message)
                trainer.dealer.send(frame)
        trainer.say(AskStatus(99))
        while not isinstance(trainer.hear(), Status):
            pass


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(packets=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=5))
def test_any_packet_on_the_lease_harms_nobody(daemon: Daemon, packets: list[bytes]) -> None:
    with raw_trainer(daemon.run_dir) as trainer:
        try:
            for packet in packets:
                trainer.lease.send(packet)
        except OSError:  # the daemon has ended this lease already
            return
        assert trainer.hear_lease() is None or trainer.hear_lease() is None
