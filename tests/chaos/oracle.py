"""The truth of every batch, made without a daemon: the order as it is drawn, the rows by their keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from tests.chaos.material import CONFIG, LENGTH, Role, Rows

from loaderd_server.batching.fetch import Fetcher
from loaderd_server.batching.imports import load
from loaderd_server.batching.keys import Keys
from loaderd_server.batching.order import draw
from loaderd_server.config import Config
from loaderd_server.core.settings import ErrorPolicy, Mode
from loaderd_server.core.tasks import BatchAddress, OrderTask, ProbeTask
from loaderd_server.plans import dataset_plans
from loaderd_server.workers.plan import StreamPlan

_EPOCHS_KEPT = 8


def digest(rows: Iterable[Any], indices: Iterable[int], names: Iterable[str]) -> str:
    """A batch in 16 letters: every byte of its tensors and every letter of its texts."""
    made = hashlib.blake2b(digest_size=8)
    made.update(np.ascontiguousarray(rows).tobytes())
    made.update(np.asarray(indices, dtype=np.int64).tobytes())
    made.update("\0".join(names).encode())
    return made.hexdigest()


def digest_of(batch: Any) -> str:
    """Of a batch as a trainer gets it."""
    return digest(batch["row"].numpy(), batch["index"].numpy(), batch["name"])


class Oracle:
    """What one role must be given, epoch by epoch, as digests."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._plan = _plans()[role.stream]
        self._seed = self._plan.seed if role.seed is None else role.seed
        self.batch_size = role.batch_size or self._plan.batch_size or 1
        self.epoch = lru_cache(_EPOCHS_KEPT)(self._epoch)

    def _epoch(self, epoch: int) -> tuple[str, ...]:
        indices, occurrences = self._share(epoch)
        samples = self._samples(epoch, indices, occurrences)
        size = self.batch_size
        return tuple(
            digest(
                np.stack([sample["row"].numpy() for sample in part]),
                [sample["index"] for sample in part],
                [sample["name"] for sample in part],
            )
            for part in (samples[at : at + size] for at in range(0, len(samples), size))
        )

    def samples_in(self, epoch: int) -> int:
        """Positions of an epoch, for this rank."""
        return len(self._share(epoch)[0])

    def _share(self, epoch: int) -> tuple[Any, Any]:
        """As DistributedSampler deals: every world_size-th, padded by going round."""
        drawn = draw(OrderTask(1, "rows", self._role.stream, self._seed, epoch), self._plan, Rows())
        indices = drawn.indices
        occurrences = np.zeros_like(indices) if drawn.occurrences is None else drawn.occurrences
        if self._plan.mode is not Mode.SHARD:
            return indices, occurrences
        world_size = self._role.world_size
        padded = np.arange(-(-LENGTH // world_size) * world_size) % LENGTH
        mine = padded[self._role.rank :: world_size]
        return indices[mine], occurrences[mine]

    def _samples(self, epoch: int, indices: Any, occurrences: Any) -> list[Any]:
        transforms = [load(target.target) for target in self._plan.transforms]
        fetcher = Fetcher(Rows(), transforms, Keys("rows"), "oracle", lambda _row: None)
        address = BatchAddress(self._role.stream, self._seed, epoch, 0, 0, 1)
        fetched = fetcher.fetch(
            ProbeTask(1, "rows", address, indices, occurrences), ErrorPolicy.RAISE
        )
        assert not fetched.failures, fetched.failures
        return fetched.samples


@lru_cache
def _plans() -> dict[str, StreamPlan]:
    (dataset,) = dataset_plans(Config.model_validate(yaml.safe_load(CONFIG)), Path())
    return {plan.name: plan for plan in dataset.streams}
