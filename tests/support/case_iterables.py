"""Iterable datasets that share, repeat, resume and kill."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.case_datasets import Killing
from torch.utils.data import IterableDataset, get_worker_info


class Items(IterableDataset[int]):
    """Numbers, shared out among the workers; or given by each of them if ``careless``."""

    def __init__(self, length: int = 10, careless: bool = False) -> None:
        self.length, self.careless = length, careless

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        if worker is None or self.careless:
            return iter(range(self.length))
        return iter(range(worker.id, self.length, worker.num_workers))


class Resumable(Items):
    """Items that know where they are."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class KillingItems(Items):
    """Before number ``at`` its process is killed; only the first time if ``once``."""

    def __init__(self, at: int, length: int = 16, once: str | None = None) -> None:
        super().__init__(length)
        self.killing = Killing(at, "kill", length, once)

    def __iter__(self) -> Iterator[int]:
        return (self.killing[index] for index in super().__iter__())
