"""Larger slots for larger batches: found, asked for, waited for, or refused in words."""

from __future__ import annotations

from loaderd_protocol.arena import page_align
from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.arenas import ArenaDesk, ArenaRequest, Purpose
from loaderd_server.core.batchjob import BatchJob
from loaderd_server.core.credits import MOST_PREFETCH, VIEWS
from loaderd_server.core.making import Maker
from loaderd_server.core.overflow import PATIENCE_S, Refusal, size_class
from loaderd_server.core.scheduler import slot_for
from loaderd_server.core.streams import Phase, Stream
from loaderd_server.core.turn import Turn


class LargeSlots:
    """Serves jobs that found their slot too small."""

    def __init__(self, turn: Turn, arenas: ArenaDesk, maker: Maker) -> None:
        self._turn = turn
        self._arenas = arenas
        self._maker = maker

    def seek(self, job: BatchJob) -> None:
        """The job has no slot: it gets one now, waits for one, or fails."""
        if self._place(job):
            return
        deadline = self._turn.now + PATIENCE_S
        job.stream.overflow.waiting.append((deadline, job))
        self._turn.wake_at(deadline)
        self._ask_or_fail(job.stream)

    def serve(self, stream: Stream) -> None:
        """Slots may have become free: those who wait are tried in order."""
        waiting = stream.overflow.waiting
        for _ in range(len(waiting)):
            deadline, job = waiting.popleft()
            if stream.phase is Phase.CLOSED or not _is_near(job):
                self._maker.drop(job)
            elif not self._place(job):
                waiting.append((deadline, job))
        self._ask_or_fail(stream)

    def timer_fired(self, stream: Stream) -> None:
        """Those who waited for too long fail."""
        waiting = stream.overflow.waiting
        while waiting and waiting[0][0] <= self._turn.now:
            job = waiting.popleft()[1]
            self._maker.fail(job, _held_too_long(job))
        if waiting:
            self._turn.wake_at(waiting[0][0])

    def arena_ready(self, stream: Stream) -> None:
        """The slot that was asked for is there."""
        stream.overflow.asked_bytes = None
        self.serve(stream)

    def arena_refused(self, request: ArenaRequest, text: str) -> None:
        """It is not. The size is rounded up, so the exact one is tried before anyone fails."""
        overflow = request.stream.overflow
        overflow.asked_bytes = None
        overflow.refusal = Refusal(request.slot_bytes, self._turn.now, text)
        self._ask_or_fail(request.stream)

    def _place(self, job: BatchJob) -> bool:
        slot = slot_for(job.stream, job.needed_bytes, job.epoch.distance(job.batch))
        if slot is None:
            return False
        self._maker.take_slot(job, slot)
        self._maker.submit(job)
        return True

    def _ask_or_fail(self, stream: Stream) -> None:
        overflow = stream.overflow
        for entry in tuple(overflow.waiting):
            if overflow.asked_bytes is not None:
                return
            job = entry[1]
            if self._ask(job) or self._fits_somewhere(job):
                continue
            overflow.waiting.remove(entry)
            self._maker.fail(job, _no_memory(job))

    def _ask(self, job: BatchJob) -> bool:
        """Asks for a slot that fits the job, unless that was refused or is beyond the share."""
        stream = job.stream
        for slot_bytes in (size_class(job.needed_bytes), page_align(job.needed_bytes)):
            if stream.overflow.refused(slot_bytes, self._turn.now) is not None:
                continue
            if self._fits_somewhere(job) and stream.arena_bytes + slot_bytes > stream.share_bytes:
                continue
            stream.overflow.asked_bytes = slot_bytes
            self._arenas.ask(ArenaRequest(stream, slot_bytes, 1, Purpose.LARGE_BATCH))
            return True
        return False

    @staticmethod
    def _fits_somewhere(job: BatchJob) -> bool:
        return any(size >= job.needed_bytes for size in job.stream.pool.large_sizes)


def _is_near(job: BatchJob) -> bool:
    distance = job.epoch.distance(job.batch)
    return distance is not None and distance <= MOST_PREFETCH + VIEWS


def _too_large(job: BatchJob, why: str) -> Failure:
    text = (
        f"batch {job.batch} of stream {job.stream.name!r}, epoch {job.epoch.number}, needs "
        f"{job.needed_bytes} bytes; the stream's slots hold {job.stream.pool.base_bytes}. {why}"
    )
    return Failure(ErrorCode.TOO_LARGE, -1, "", text)


def _no_memory(job: BatchJob) -> Failure:
    refusal = job.stream.overflow.refusal
    return _too_large(job, f"No larger slot could be made: {refusal.text if refusal else ''}")


def _held_too_long(job: BatchJob) -> Failure:
    return _too_large(
        job,
        f"Every larger slot was in use for {PATIENCE_S:g} s, by trainers that keep its batch or "
        f"have stopped. Raise streams.{job.stream.name}.slot_bytes, or memory, or lower batch_size",
    )
