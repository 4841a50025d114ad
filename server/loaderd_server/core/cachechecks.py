"""Before a dataset is cached, some of its samples are loaded twice: a random one must not be frozen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from loaderd_server.core.jobs import AnyWorker, WorkerLoss
from loaderd_server.core.tasks import CheckDone, CheckTask, Indices, Result

#: So many samples are looked at, spread over the dataset.
_SAMPLES = 6
_MOST_DEATHS = 2


class CheckJob(AnyWorker):
    """``told`` is called once: with what was found, or with None where it could not be found out."""

    def __init__(
        self,
        dataset: str,
        samples: int,
        due: int,
        told: Callable[[CheckDone | None], None],
        submit: Callable[[CheckJob], None],
    ) -> None:
        self.dataset = dataset
        self.due = due
        self.alone = False
        self.is_wanted = True
        self._samples = samples
        self._told = told
        self._submit = submit
        self._deaths = 0

    def __str__(self) -> str:
        return f"check whether samples of {self.dataset} may be cached"

    def task(self, number: int) -> CheckTask:
        """See Job."""
        return CheckTask(number, self.dataset, self._indices())

    def _indices(self) -> Indices:
        """Others after each death, in case a sample did it."""
        step = max(1, self._samples // _SAMPLES)
        return np.unique((np.arange(_SAMPLES) * step + self._deaths) % self._samples)

    def answered(self, result: Result) -> None:
        """See Job."""
        self._told(result if isinstance(result, CheckDone) else None)

    def worker_lost(self, loss: WorkerLoss) -> None:
        """See Job."""
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            self._told(None)
        else:
            self._submit(self)

    def abandoned(self, text: str) -> None:
        """See Job."""
        self._told(None)
