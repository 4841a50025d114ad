"""Samples that fail, kill or hang: retries, the search, on_error, caps, and what is said of them."""

from __future__ import annotations

import pytest
from tests.unit.core.driver import Bench, bad_sample, done, settings_of

from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import (
    Announce,
    BatchEmpty,
    BatchFailed,
    EpochStarted,
    FailedSample,
    Refused,
    Start,
)
from loaderd_server.core.actions import Assign, KillWorker
from loaderd_server.core.events import DatasetLost, DatasetReady
from loaderd_server.core.failures import failed_in
from loaderd_server.core.settings import ErrorPolicy, OnError
from loaderd_server.core.tasks import (
    BatchDone,
    BatchTask,
    MeasureDone,
    OrderTask,
    ProbeDone,
    ProbeTask,
    RowFailure,
    Task,
    TaskFailed,
)

_SKIP, _SUBSTITUTE = ErrorPolicy.SKIP, ErrorPolicy.SUBSTITUTE


class _Dataset:
    """Plays the workers of a dataset, some samples of which are ill."""

    def __init__(
        self,
        bench: Bench,
        *,
        bad: tuple[int, ...] = (),
        deadly: tuple[int, ...] = (),
        names_row: bool = True,
    ) -> None:
        self.bench = bench
        self.bad, self.deadly, self.names_row = set(bad), set(deadly), names_row
        self.deaths = 0
        #: (batch, indices) of batches given out, and indices of probes.
        self.batches: list[tuple[int, list[int]]] = []
        self.probes: list[list[int]] = []

    def work(self, most: int = 1000) -> None:
        """Does what workers have in hand until there is nothing."""
        for _ in range(most):
            busy = [worker for worker, tasks in self.bench.hands.items() if tasks]
            if not busy and not self._starts_are_put_off():
                return
            if not busy:
                self.bench.pass_time(1)
                continue
            self._do(busy[0], self.bench.hands[busy[0]][0])
        raise AssertionError("there is no end to it")

    def _starts_are_put_off(self) -> bool:
        """After many deaths in a row, workers are started ever less often."""
        return self.bench.core._dispatcher.teams["d0"].not_before > self.bench.now

    def _do(self, worker: int, task: Task) -> None:
        assert isinstance(task, (BatchTask, ProbeTask))
        indices = task.indices.tolist()
        if isinstance(task, BatchTask):
            self.batches.append((task.address.batch, indices))
        else:
            self.probes.append(indices)
        for row, index in enumerate(indices):
            if index in self.deadly:
                self.deaths += 1
                self.bench.die(worker, row if self.names_row else None)
                return
        failures = tuple(
            RowFailure(row, bad_sample(index))
            for row, index in enumerate(indices)
            if index in self.bad
        )
        self._answer(worker, task, failures)

    def _answer(
        self, worker: int, task: BatchTask | ProbeTask, failures: tuple[RowFailure, ...]
    ) -> None:
        policy = self.bench.core._streams["s0"].settings.on_error.policy
        if isinstance(task, ProbeTask):
            probed = TaskFailed(task.task, failures) if failures else ProbeDone(task.task)
            self.bench.answer(worker, probed)
        elif failures and policy is not _SKIP:
            self.bench.answer(worker, TaskFailed(task.task, failures))
        else:
            rows = len(task.indices) - len(failures)
            self.bench.answer(worker, BatchDone(task.task, rows, 100, b"", 0, 0, failures))

    def last_rows(self, batch: int) -> list[int]:
        """The samples a batch was made of at last."""
        return [rows for made, rows in self.batches if made == batch][-1]


def _bench(policy: ErrorPolicy | OnError = ErrorPolicy.RAISE, length: int = 12) -> Bench:
    bench = Bench(settings_of(on_error=policy), length=length)
    bench.trainer(1, prefetch=8)
    return bench


# --- exceptions -----------------------------------------------------------------------------


def test_raise_fails_the_batch_with_the_worker_s_words_and_later_ones_come() -> None:
    bench = _bench()
    _Dataset(bench, bad=(5, 6)).work()
    (failed,) = bench.messages(1, BatchFailed)
    assert (failed.batch, failed.failure) == (1, bad_sample(5))
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 2]


def test_a_failure_is_remembered_for_whoever_comes_to_it() -> None:
    bench = _bench()
    dataset = _Dataset(bench, bad=(5,))
    dataset.work()
    bench.trainer(2, prefetch=8)
    dataset.work()
    assert bench.messages(2, BatchFailed)[0].failure == bad_sample(5)
    assert len([batch for batch, _ in dataset.batches if batch == 1]) == 1


def test_a_failed_batch_takes_a_credit_until_it_is_released() -> None:
    bench = Bench(settings_of(), length=40)
    bench.trainer(1, prefetch=0)
    dataset = _Dataset(bench, bad=tuple(range(40)))
    dataset.work()
    assert len(bench.messages(1, BatchFailed)) == 2
    bench.release(1, bench.messages(1, BatchFailed)[0])
    dataset.work()
    assert [failed.batch for failed in bench.messages(1, BatchFailed)] == [0, 1, 2]


def test_skip_reports_what_was_left_out_by_position_and_index() -> None:
    bench = _bench(_SKIP)
    _Dataset(bench, bad=(5, 7)).work()
    second = bench.messages(1, Announce)[1]
    assert second.rows == 2
    assert [(f.position, f.index) for f in second.failed] == [(5, 5), (7, 7)]
    assert "ValueError: sample 5 is bad" in second.failed[0].text


def test_a_batch_made_again_is_sent_without_what_had_failed() -> None:
    bench = _bench(_SKIP, length=400)
    dataset = _Dataset(bench, bad=(5,))
    dataset.work()
    for _ in range(3):
        for announce in bench.messages(1, Announce)[bench.released[1] :]:
            bench.release(1, announce)
        dataset.work()
    bench.trainer(2, start=1)
    dataset.work()
    again = bench.messages(2, Announce)[0]
    assert dataset.last_rows(1) == [4, 6, 7]
    assert [f.index for f in again.failed] == [5]
    assert bench.core.status().streams[0].batches_remade >= 1


def test_a_batch_of_which_every_sample_fails_is_passed_over_as_empty() -> None:
    bench = _bench(_SKIP)
    _Dataset(bench, bad=(4, 5, 6, 7)).work()
    (empty,) = bench.messages(1, BatchEmpty)
    assert empty.batch == 1
    assert len(empty.failed) == 4
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 2]


def test_substitute_takes_the_next_good_position_going_round() -> None:
    bench = _bench(_SUBSTITUTE)
    dataset = _Dataset(bench, bad=(5, 6, 11))
    dataset.work()
    announced = bench.messages(1, Announce)
    assert dataset.last_rows(1) == [4, 7, 7, 7]
    assert dataset.last_rows(2) == [8, 9, 10, 0]
    assert [[f.position for f in a.failed] for a in announced] == [[], [5, 6], [11]]
    assert all(a.rows == 4 for a in announced)


def test_a_substitute_that_fails_is_replaced_by_the_one_after_it() -> None:
    bench = _bench(_SUBSTITUTE)
    dataset = _Dataset(bench, bad=(3, 4, 5))
    dataset.work()
    assert dataset.last_rows(0) == [0, 1, 2, 6]
    assert [f.position for f in bench.messages(1, Announce)[0].failed] == [3]
    assert dataset.last_rows(1) == [6, 6, 6, 7]


def test_substitute_gives_up_where_every_sample_failed() -> None:
    bench = _bench(_SUBSTITUTE, length=4)
    _Dataset(bench, bad=(0, 1, 2, 3)).work()
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.failure.code == ErrorCode.TOO_MANY_FAILURES


def test_substitute_gives_up_on_a_batch_after_a_long_row_of_failures() -> None:
    bench = _bench(_SUBSTITUTE, length=400)
    _Dataset(bench, bad=tuple(range(200))).work()
    failed = bench.messages(1, BatchFailed)[0]
    assert failed.failure.code == ErrorCode.TOO_MANY_FAILURES
    assert "64 times" in failed.failure.text


def test_a_row_decided_meanwhile_by_another_batch_is_not_left_in() -> None:
    """Batch 1 is being made with sample 4 while batch 0 finds, as its substitute, that 4 is bad."""
    bench = Bench(settings_of(workers=2, on_error=_SUBSTITUTE), length=12)
    bench.trainer(1, prefetch=8)
    (first, task0), (second, task1) = bench.batch_task(1), bench.batch_task(2)
    bench.answer(first, TaskFailed(task0.task, (RowFailure(3, bad_sample(3)),)))
    (first, again) = bench.batch_task(first)
    assert again.indices.tolist() == [0, 1, 2, 4]
    bench.answer(first, TaskFailed(again.task, (RowFailure(3, bad_sample(4)),)))
    bench.answer(second, done(task1))
    resent = [bench.batch_task(worker)[1] for worker in (1, 2)]
    rows = {task.address.batch: task.indices.tolist() for task in resent}
    assert rows[1] == [5, 5, 6, 7]


def test_a_sample_that_was_good_and_fails_now_fails_the_batch() -> None:
    bench = _bench(_SKIP, length=400)
    for _ in range(3):
        _Dataset(bench).work()
        for announce in bench.messages(1, Announce)[bench.released[1] :]:
            bench.release(1, announce)
    _Dataset(bench).work()
    bench.trainer(2, start=1)
    _Dataset(bench, bad=(5,)).work()
    (failed,) = bench.messages(2, BatchFailed)
    assert failed.failure.index == 5
    assert "was good when its batch was first made" in failed.failure.text


def test_a_collate_that_fails_fails_its_batch_under_every_policy() -> None:
    for policy in ErrorPolicy:
        bench = _bench(policy)
        worker, task = bench.batch_task()
        bench.answer(worker, TaskFailed(task.task, (RowFailure(-1, bad_sample(-1)),)))
        assert bench.messages(1, BatchFailed)[0].failure == bad_sample(-1)


@pytest.mark.parametrize("policy", ErrorPolicy)
def test_an_answer_that_makes_no_sense_fails_its_batch_alone(policy: ErrorPolicy) -> None:
    bench = _bench(policy)
    worker, task = bench.batch_task()
    bench.answer(worker, MeasureDone(task.task, 5))
    worker, task = bench.batch_task()
    bench.answer(worker, TaskFailed(task.task, ()))
    bench.make()
    assert [failed.batch for failed in bench.messages(1, BatchFailed)] == [0, 1]
    assert [announce.batch for announce in bench.messages(1, Announce)] == [2]


# --- caps -----------------------------------------------------------------------------------


def test_more_failures_than_max_count_fail_the_batch_with_the_numbers() -> None:
    bench = _bench(OnError(_SKIP, max_count=1))
    _Dataset(bench, bad=(1, 5)).work()
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.batch == 1
    assert failed.failure.code == ErrorCode.TOO_MANY_FAILURES
    for part in ("2 samples failed", "streams.s0.on_error.max_count = 1", "sample 5 is bad"):
        assert part in failed.failure.text
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 2]


def test_max_rate_is_looked_at_from_the_hundredth_sample_on() -> None:
    bench = Bench(settings_of(on_error=OnError(_SKIP, max_rate=0.05), slots=80), length=240)
    bench.trainer(1, prefetch=64)
    _Dataset(bench, bad=(*range(8), 150)).work()
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.batch == 37
    assert "9 of 152 samples failed" in failed.failure.text
    assert "max_rate = 0.05" in failed.failure.text


# --- samples that end their worker ----------------------------------------------------------


def test_a_deadly_sample_is_named_after_three_deaths() -> None:
    bench = _bench()
    dataset = _Dataset(bench, deadly=(5,))
    dataset.work()
    (failed,) = bench.messages(1, BatchFailed)
    assert (failed.batch, failed.failure.code) == (1, ErrorCode.WORKER_DIED)
    assert failed.failure.index == 5
    for part in (
        "sample 5 ended its worker 3 times (worker ",
        "was killed by signal 9 (SIGKILL)",
        "streams.s0.on_error",
    ):
        assert part in failed.failure.text
    assert "pid 100" in failed.failure.where
    assert dataset.deaths == 3
    assert dataset.probes == [[5]]
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 2]


def test_without_a_named_row_the_batch_is_halved() -> None:
    bench = Bench(settings_of(batch_size=8), length=16)
    bench.trainer(1, prefetch=8)
    dataset = _Dataset(bench, deadly=(6,), names_row=False)
    dataset.work()
    assert bench.messages(1, BatchFailed)[0].failure.index == 6
    assert dataset.probes == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [6, 7], [6]]


def test_a_batch_that_kills_as_a_whole_is_tried_once_more_and_then_named() -> None:
    bench = _bench()
    worker, task = bench.batch_task()
    for _ in range(2):
        bench.die(worker, row=1)
        worker = next(w for w, tasks in bench.hands.items() if tasks)
    while isinstance(probe := bench.hands[worker][0], ProbeTask):
        bench.answer(worker, ProbeDone(probe.task))
        worker = next(w for w, tasks in bench.hands.items() if tasks)
    assert bench.batch_task()[1].indices.tolist() == task.indices.tolist()
    bench.die(worker, row=1)
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.failure.index == -1
    assert "batch 0 ended its worker 3 times" in failed.failure.text


def test_a_batch_that_survives_the_search_is_delivered() -> None:
    bench = _bench()
    worker, _ = bench.batch_task()
    for _ in range(2):
        bench.die(worker, row=1)
        worker = next(w for w, tasks in bench.hands.items() if tasks)
    _Dataset(bench).work()
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 1, 2]


def test_skip_goes_on_without_the_deadly_samples() -> None:
    bench = _bench(_SKIP)
    dataset = _Dataset(bench, deadly=(5, 6))
    dataset.work()
    announced = bench.messages(1, Announce)
    assert [a.batch for a in announced] == [0, 1, 2]
    assert [f.index for f in announced[1].failed] == [5, 6]
    assert dataset.last_rows(1) == [4, 7]


def test_substitute_replaces_a_deadly_sample() -> None:
    bench = _bench(_SUBSTITUTE)
    dataset = _Dataset(bench, deadly=(7,), bad=(8,))
    dataset.work()
    assert dataset.last_rows(1) == [4, 5, 6, 9]


def test_a_batch_whose_every_sample_is_deadly_is_empty_without_a_worker() -> None:
    bench = _bench(_SKIP)
    _Dataset(bench, deadly=(4, 5, 6, 7)).work()
    assert [empty.batch for empty in bench.messages(1, BatchEmpty)] == [1]


def test_a_probe_whose_zygote_is_lost_is_tried_again() -> None:
    bench = _bench()
    for _ in range(2):
        bench.die(next(w for w, tasks in bench.hands.items() if tasks), row=1)
    bench.hands.clear()
    bench.event(DatasetLost("d0", "was killed"))
    bench.event(DatasetReady("d0", 12))
    dataset = _Dataset(bench)
    dataset.work()
    assert dataset.probes[0] == [1]
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 1, 2]


# --- samples that hang ----------------------------------------------------------------------


def test_a_hanging_sample_is_named_after_one_timeout_without_probes() -> None:
    bench = _bench()
    bench.pass_time(11)
    bench.die(bench.done_so_far(KillWorker)[-1].worker, row=2)
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.failure.code == ErrorCode.WORKER_TIMEOUT
    assert failed.failure.index == 2
    for part in ("sample 2 kept its worker busy for longer than workers.timeout_s", "worker "):
        assert part in failed.failure.text
    assert not [a for a in bench.done_so_far(Assign) if isinstance(a.task, ProbeTask)]


def test_a_batch_that_hangs_in_no_sample_fails_after_one_timeout() -> None:
    bench = _bench()
    bench.pass_time(11)
    bench.die(bench.done_so_far(KillWorker)[-1].worker)
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.failure.code == ErrorCode.WORKER_TIMEOUT
    assert "look at its collate" in failed.failure.text


def test_a_worker_that_may_have_inherited_a_lock_is_given_a_second_try_by_another() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.event(DatasetReady("d0", 12, forks_locks=True))
    bench.trainer(1)
    first = bench.batch_task()[0]
    bench.core._dispatcher.workers[
        first
    ].tasks_done = 0  # it measured; a fresh one has done nothing
    bench.pass_time(11)
    bench.die(first, row=2)
    assert not bench.messages(1, BatchFailed)
    bench.make()
    assert bench.messages(1, Announce)


def test_a_hanging_sample_without_a_named_row_is_searched_for() -> None:
    bench = _bench(_SKIP)
    bench.pass_time(11)
    bench.die(bench.done_so_far(KillWorker)[-1].worker)
    _Dataset(bench, deadly=(2,)).work()
    assert [f.index for f in bench.messages(1, Announce)[0].failed] == [2]


# --- orders ---------------------------------------------------------------------------------


def test_an_order_task_that_kills_three_workers_is_given_up_and_the_stream_with_it() -> None:
    bench = Bench(settings_of(), opens=False)
    bench._work = lambda worker: None  # type: ignore[method-assign]
    bench.event(DatasetReady("d0", 12))
    for _ in range(3):
        worker = next(w for w, tasks in bench.hands.items() if tasks)
        assert isinstance(bench.hands[worker][0], OrderTask)
        bench.die(worker)
    assert "it ended its worker 3 times" in bench.closed()[0]


def test_a_later_epoch_s_order_that_fails_ends_those_who_need_it_alone() -> None:
    bench = Bench(settings_of(), length=12)
    bench.makes_batches = True
    bench.trainer(1)
    bench.trainer(2)
    failed = TaskFailed(0, (RowFailure(-1, bad_sample(-1)),))
    ordinary = bench.order
    bench.order = lambda task: TaskFailed(task.task, failed.failures)  # type: ignore[assignment,return-value]
    bench.say(1, Start(0, 2, 5, 0))
    (refused,) = bench.messages(1, Refused)
    assert refused.code == ErrorCode.STREAM_ENDED
    assert "the order of epoch 5" in refused.text
    bench.order = ordinary
    bench.say(2, Start(0, 2, 5, 0))
    assert bench.messages(2, EpochStarted)[-1].epoch == 5


def test_failures_of_a_batch_are_told_in_the_order_of_positions() -> None:
    bench = _bench(_SKIP)
    _Dataset(bench, bad=(7, 5)).work()
    epoch = next(iter(bench.core._streams["s0"].sequences.values())).epochs[(0, ())]
    assert [type(f) for f in failed_in(epoch, 1)] == [FailedSample, FailedSample]
    assert [f.position for f in failed_in(epoch, 1)] == [5, 7]
