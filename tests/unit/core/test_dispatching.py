"""Workers: started on need, shared among datasets, replaced when they die, hang or grow."""

from __future__ import annotations

from tests.unit.core.driver import Bench, done, settings_of

from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import Announce, BatchFailed
from loaderd_server.core.actions import Assign, KillWorker, StartWorker, StopWorker
from loaderd_server.core.events import (
    DatasetLost,
    DatasetReady,
    WorkerAnswered,
    WorkerEnded,
    WorkerStarted,
)
from loaderd_server.core.tasks import BatchTask, ProbeDone


def _busy(bench: Bench) -> dict[int, int]:
    return {worker: len(tasks) for worker, tasks in bench.hands.items() if tasks}


def test_workers_are_started_on_need_and_no_more_than_the_count() -> None:
    bench = Bench(settings_of(workers=3), length=400)
    assert len(bench.done_so_far(StartWorker)) == 1
    bench.trainer(1, prefetch=5)
    assert len(bench.done_so_far(StartWorker)) == 3


def test_no_worker_is_started_for_batches_that_nobody_wants() -> None:
    bench = Bench(settings_of(workers=8), length=400)
    bench.trainer(1, prefetch=0)
    assert len(_busy(bench)) == 2


def test_tasks_go_to_idle_workers_first_and_then_wait_in_the_hands_of_busy_ones() -> None:
    bench = Bench(settings_of(workers=2, depth=2), length=400)
    bench.trainer(1, prefetch=8)
    assert sorted(_busy(bench).values()) == [2, 2]


def test_a_worker_has_at_most_depth_tasks_in_hand() -> None:
    bench = Bench(settings_of(workers=1, depth=3), length=400)
    bench.trainer(1, prefetch=8)
    assert list(_busy(bench).values()) == [3]


def test_one_place_is_shared_in_turn_by_two_datasets() -> None:
    bench = Bench(settings_of(workers=1, depth=2, streams=2), length=400)
    bench.trainer(1, "s0", prefetch=8)
    bench.trainer(2, "s1", prefetch=8)
    made = []
    for _ in range(8):
        assert len(_busy(bench)) == 1
        made.append(bench.make().address.stream)
    assert made.count("s0") >= 3
    assert made.count("s1") >= 3


def test_a_dataset_that_comes_later_gets_its_share_of_the_places() -> None:
    bench = Bench(settings_of(workers=4, depth=2, streams=2), length=400)
    bench.trainer(1, "s0", prefetch=16)
    assert len(_busy(bench)) == 4
    bench.trainer(2, "s1", prefetch=16)
    for _ in range(40):
        bench.make(next(iter(_busy(bench))))
        for lease in (1, 2):
            for announce in bench.messages(lease, Announce)[bench.released[lease] :]:
                bench.release(lease, announce)
    datasets = [bench.hands[w][0].dataset for w in _busy(bench)]
    assert 1 <= datasets.count("d1") <= 3


def test_the_place_of_an_idle_dataset_is_used_by_the_other() -> None:
    bench = Bench(settings_of(workers=2, streams=2), length=400)
    bench.makes_batches = True
    bench.trainer(2, "s1")
    bench.makes_batches = False
    bench.trainer(1, "s0", prefetch=8)
    assert [bench.hands[w][0].dataset for w in _busy(bench)] == ["d0", "d0"]


def test_a_worker_that_dies_once_is_replaced_and_nobody_notices() -> None:
    bench = Bench(settings_of(workers=1, depth=2), length=400)
    bench.trainer(1)
    (worker, waiting) = next(iter(_busy(bench).items()))
    assert waiting == 2
    bench.die(worker, row=2)
    retried = bench.make()
    assert retried.address.batch == 0
    assert [a.batch for a in bench.messages(1, Announce)] == [0]
    assert "was killed by signal 9 (SIGKILL)" in bench.logged()[0]


def test_tasks_behind_the_one_that_killed_are_not_blamed() -> None:
    bench = Bench(settings_of(workers=1, depth=3), length=400)
    bench.trainer(1)
    for _ in range(3):
        worker = next(iter(_busy(bench)))
        bench.die(worker, row=0)
    (failed,) = bench.messages(1, BatchFailed)
    assert failed.batch == 0
    assert bench.make().address.batch == 1
    assert bench.make().address.batch == 2


def test_a_task_that_may_kill_has_its_worker_to_itself() -> None:
    bench = Bench(settings_of(workers=1, depth=3), length=400)
    bench.trainer(1)
    bench.die(next(iter(_busy(bench))), row=0)
    assert list(_busy(bench).values()) == [1]


def test_a_task_that_takes_too_long_has_its_worker_killed() -> None:
    bench = Bench(settings_of(timeout_s=10), length=400)
    bench.trainer(1)
    bench.pass_time(9.9)
    assert not bench.done_so_far(KillWorker)
    bench.pass_time(0.2)
    assert "workers.timeout_s" in bench.done_so_far(KillWorker)[0].why


def test_the_clock_of_a_waiting_task_starts_when_it_is_begun() -> None:
    bench = Bench(settings_of(timeout_s=10, depth=2), length=400)
    bench.trainer(1)
    bench.pass_time(9)
    bench.make()
    bench.pass_time(9)
    assert not bench.done_so_far(KillWorker)
    bench.pass_time(2)
    assert len(bench.done_so_far(KillWorker)) == 1


def test_a_slow_trainer_never_trips_the_timeout() -> None:
    bench = Bench(settings_of(timeout_s=1), length=400)
    bench.makes_batches = True
    bench.trainer(1)
    bench.pass_time(1000)
    assert not bench.done_so_far(KillWorker)


def test_an_answer_that_comes_before_the_kill_counts() -> None:
    """The task was done after all; the one that had just begun is not blamed for the end."""
    bench = Bench(settings_of(timeout_s=10, depth=2), length=400)
    bench.trainer(1)
    bench.pass_time(11)
    worker = bench.done_so_far(KillWorker)[0].worker
    bench.make(worker)
    bench.die(worker, row=3)
    assert [a.batch for a in bench.messages(1, Announce)] == [0]
    bench.die(next(iter(_busy(bench))), row=0)
    assert not bench.messages(1, BatchFailed)
    assert bench.make().address.batch in (1, 2)


def test_a_worker_that_outgrew_its_memory_is_replaced_after_what_it_has_in_hand() -> None:
    bench = Bench(settings_of(depth=2, max_rss_bytes=1000), length=400)
    bench.trainer(1, prefetch=8)
    worker, task = bench.batch_task()
    bench.answer(worker, done(task), rss_bytes=2000)
    assert not bench.done_so_far(StopWorker)
    bench.make(worker)
    assert [stop.worker for stop in bench.done_so_far(StopWorker)] == [worker]
    assert next(iter(_busy(bench))) != worker
    assert any("workers.max_rss" in line for line in bench.logged())


def test_idle_workers_end_but_for_one() -> None:
    bench = Bench(settings_of(workers=3, idle_s=5), length=400)
    bench.makes_batches = True
    bench.trainer(1, prefetch=8)
    assert len(bench.core.status().workers) == 3
    bench.pass_time(20)
    assert len(bench.core.status().workers) == 1


def test_a_lost_zygote_takes_its_workers_along_and_their_tasks_start_again() -> None:
    bench = Bench(settings_of(workers=2, depth=2), length=400)
    bench.trainer(1)
    bench.hands.clear()
    bench.event(DatasetLost("d0", "was killed by signal 9 (SIGKILL)"))
    assert not bench.core.status().workers
    assert not _busy(bench)
    bench.makes_batches = True
    bench.event(DatasetReady("d0", 400))
    assert [a.batch for a in bench.messages(1, Announce)] == [0, 1, 2, 3]


def test_a_loss_counts_against_a_task_only_when_it_repeats() -> None:
    bench = Bench(settings_of(), length=400)
    bench.trainer(1)
    for _ in range(2):
        bench.hands.clear()
        bench.event(DatasetLost("d0", "was killed"))
        bench.event(DatasetReady("d0", 400))
    assert isinstance(bench.hands[next(iter(_busy(bench)))][0], BatchTask)
    bench.hands.clear()
    bench.event(DatasetLost("d0", "was killed"))
    bench.event(DatasetReady("d0", 400))
    probe = bench.hands[next(iter(_busy(bench)))][0]
    assert not isinstance(probe, BatchTask)


def test_a_dataset_that_is_lost_does_not_stop_another() -> None:
    bench = Bench(settings_of(streams=2), length=400)
    bench.makes_batches = True
    bench.event(DatasetLost("d0", "was killed"))
    bench.trainer(1, "s0")
    bench.trainer(2, "s1")
    assert len(bench.messages(2, Announce)) == 4


def test_workers_that_die_at_their_start_fail_what_waits_and_are_tried_ever_less_often() -> None:
    bench = Bench(settings_of(), length=400)
    bench.trainer(1)
    bench.starts_workers = False
    bench.die(next(iter(_busy(bench))))
    for _ in range(200):
        last = bench.done_so_far(StartWorker)[-1].worker
        if last in {worker.number for worker in bench.core.status().workers}:
            bench.event(WorkerEnded(last, "exited with code 3", None))
        if bench.messages(1, BatchFailed):
            break
        bench.pass_time(0.1)
    failed = bench.messages(1, BatchFailed)[0]
    assert failed.failure.code == ErrorCode.WORKER_DIED
    assert "died 5 times in a row before they could take a task" in failed.failure.text
    began, starts = bench.now, len(bench.done_so_far(StartWorker))
    while bench.now < began + 20:
        bench.pass_time(0.05)
        for told in bench.messages(1, BatchFailed)[bench.released[1] :]:
            bench.release(1, told)
        last = bench.done_so_far(StartWorker)[-1].worker
        if last in {worker.number for worker in bench.core.status().workers}:
            bench.event(WorkerEnded(last, "exited with code 3", None))
    assert 2 < len(bench.done_so_far(StartWorker)) - starts < 15


def test_a_dataset_whose_workers_start_again_serves_on() -> None:
    bench = Bench(settings_of(), length=400)
    bench.trainer(1)
    bench.starts_workers = False
    bench.die(next(iter(_busy(bench))))
    for _ in range(4):
        bench.event(WorkerEnded(bench.done_so_far(StartWorker)[-1].worker, "exited", None))
        bench.pass_time(6)
    bench.makes_batches = bench.starts_workers = True
    bench.event(WorkerStarted(bench.done_so_far(StartWorker)[-1].worker, 1))
    bench.pass_time(10)
    assert bench.messages(1, Announce)


def test_a_worker_that_never_says_it_started_is_killed() -> None:
    bench = Bench(settings_of(), opens=False)
    bench.starts_workers = False
    bench.event(DatasetReady("d0", 12))
    bench.pass_time(61)
    assert "did not start" in bench.done_so_far(KillWorker)[0].why


def test_an_answer_to_a_task_the_worker_was_not_given_is_ignored() -> None:
    bench = Bench(settings_of(), length=400)
    bench.trainer(1)
    worker, task = bench.batch_task()
    bench.event(WorkerAnswered(worker, ProbeDone(task.task + 99), 0))
    bench.event(WorkerAnswered(worker + 99, ProbeDone(task.task), 0))
    assert all("which it was not given" in line for line in bench.logged())
    bench.make()
    assert bench.messages(1, Announce)


def test_news_of_workers_nobody_knows_is_ignored() -> None:
    bench = Bench(settings_of())
    assert bench.event(WorkerEnded(77, "was killed", None)) == []
    assert bench.event(WorkerStarted(77, 1)) == []


def test_status_tells_what_each_worker_is_at() -> None:
    bench = Bench(settings_of(workers=2), length=400)
    bench.trainer(1, prefetch=1)
    bench.pass_time(2)
    bench.make()
    bench.pass_time(1)
    workers = bench.core.status().workers
    assert [worker.state for worker in workers] == ["busy", "busy"]
    assert "batch" in workers[0].task
    assert sum(worker.busy_s for worker in workers) >= 4
    assert [type(a.task) for a in bench.done_so_far(Assign)].count(BatchTask) == 3
