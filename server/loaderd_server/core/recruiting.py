"""Which worker gets a job: an idle one, a new one, a place behind another job, or the one that must."""

from __future__ import annotations

from collections.abc import Callable

from loaderd_server.core.actions import StartWorker
from loaderd_server.core.jobs import BatchSource
from loaderd_server.core.settings import WorkerSettings
from loaderd_server.core.turn import Turn
from loaderd_server.core.workers import Team, Worker

#: A worker that says nothing for so long after StartWorker is ended.
START_S = 60.0


class Recruiter:
    """Looks at the dispatcher's workers, and has new ones started."""

    def __init__(
        self,
        settings: WorkerSettings,
        turn: Turn,
        teams: dict[str, Team],
        workers: dict[int, Worker],
        is_hungry: Callable[[Team, BatchSource], bool],
    ) -> None:
        self._settings = settings
        self._turn = turn
        self._teams = teams
        self._workers = workers
        self._is_hungry = is_hungry
        #: How many were started so far: the number of the last.
        self._started = 0

    def any_worker(self, team: Team, source: BatchSource, *, alone: bool) -> Worker | None:
        """An idle worker, or a place in the hands of a busy one; or None, and one may be started."""
        free_places = self._settings.count - sum(t.busy for t in self._teams.values())
        if free_places > 0:
            for worker in team.workers.values():
                if worker.takes_more and not worker.hands:
                    return worker
            if self._start_some(team, source, free_places) or team.starting:
                return None
        return None if alone else self._second_place(team, source, free_places)

    def this_worker(self, worker: Worker) -> Worker | None:
        """A worker that has what the job needs, if it can take one more."""
        if not self.has_room(worker.number):
            return None
        is_idle = not worker.hands
        free_places = self._settings.count - sum(t.busy for t in self._teams.values())
        return None if is_idle and free_places <= 0 else worker

    def has_room(self, number: int) -> bool:
        """Whether a worker can take a job behind those in its hands; a gone one holds nobody up."""
        worker = self._workers.get(number)
        if worker is None:
            return True
        room = len(worker.hands) < self._settings.depth
        return worker.takes_more and room and not worker.is_alone_with_one

    def _second_place(self, team: Team, source: BatchSource, free_places: int) -> Worker | None:
        """The least busy worker that has room in its hands, unless another dataset is due."""
        if free_places <= 0 and len(self._teams) > 1 and self._should_yield(team, source):
            return None
        room = [
            worker
            for worker in team.workers.values()
            if worker.takes_more
            and 0 < len(worker.hands) < self._settings.depth
            and not worker.is_alone_with_one
        ]
        return min(room, key=lambda worker: len(worker.hands)) if room else None

    def _should_yield(self, team: Team, source: BatchSource) -> bool:
        """Whether a dataset with fewer busy workers waits for a place: let a worker run dry."""
        return any(
            other is not team
            and (other.busy == 0 or other.busy < team.busy - 1)
            and self._is_hungry(other, source)
            for other in self._teams.values()
        )

    def _start_some(self, team: Team, source: BatchSource, free_places: int) -> bool:
        starting = sum(t.starting for t in self._teams.values())
        places = min(free_places - starting, self._settings.count - team.living())
        if places <= 0 or self._turn.now < team.not_before:
            return False
        demand = team.waiting + source.demand(team.dataset) - team.starting
        for _ in range(min(places, max(demand, 1 if team.starting == 0 else 0))):
            self._start(team)
        return True

    def _start(self, team: Team) -> None:
        self._started += 1
        worker = Worker(self._started, team, self._turn.now)
        team.workers[worker.number] = worker
        team.starting += 1
        self._workers[worker.number] = worker
        self._turn.do(StartWorker(worker.number, team.dataset))
        self._turn.wake_at(worker.since + START_S)
