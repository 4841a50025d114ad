"""What every batch must be: written plainly, without looking at the core, as the oracle."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
from tests.simulation.scenario import BATCH_BYTES, DatasetScript, Scenario

from loaderd_protocol.errors import ErrorCode
from loaderd_server.core.settings import ErrorPolicy, Mode, StreamSettings
from loaderd_server.core.tasks import BatchAddress, OrderDone

Row = tuple[int, int]  # dataset index, occurrence


@dataclass(frozen=True)
class Expected:
    """What a trainer may be given for a batch."""

    #: The samples in the slot; None where there must be a failure, () where it must be empty.
    rows: tuple[Row, ...] | None
    #: Positions and indices that must be reported as failed.
    failed: tuple[tuple[int, int], ...]
    #: (code, index) of failures that are right, instead of the rows.
    failures: frozenset[tuple[ErrorCode, int]]
    #: Codes that may come with any index.
    codes: frozenset[ErrorCode]


class Truth:
    """The pure function that the daemon serves."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.streams = {s.name: s for s in scenario.settings.streams}
        self.datasets = {d.name: d for d in scenario.datasets}
        self._orders: dict[tuple[str, int, int], tuple[list[Row], list[int] | None]] = {}
        self._batches: dict[tuple[str, int, int, int], list[list[int]]] = {}
        self._expected: dict[BatchAddress, Expected] = {}
        self._ranks: dict[tuple[str, int, int, int], list[Row]] = {}

    def dataset(self, stream: str) -> DatasetScript:
        """The dataset of a stream."""
        return self.datasets[self.streams[stream].dataset]

    # --- orders -----------------------------------------------------------------------------

    def order(self, stream: str, epoch: int, world_size: int) -> tuple[list[Row], list[int] | None]:
        """Rows in the order of an epoch, and the cuts of a batch sampler."""
        key = (stream, epoch, world_size)
        if key not in self._orders:
            self._orders[key] = self._draw(stream, epoch, world_size)
        return self._orders[key]

    def _draw(self, stream: str, epoch: int, world: int) -> tuple[list[Row], list[int] | None]:
        settings, length = self.streams[stream], self.dataset(stream).length
        draws = random.Random(f"{stream} {settings.seed} {epoch}")
        if stream in self._scenario.redrawn:
            indices = [draws.randrange(length) for _ in range(length)]
        else:
            indices = draws.sample(range(length), length)
        cuts = None
        if settings.batch_size is None:
            cuts = [0]
            while cuts[-1] < length:
                cuts.append(min(length, cuts[-1] + draws.randint(0, 5)))
        elif length and length % world:
            pad = world - length % world
            indices = indices[: length - length % world] if settings.drop_last else indices
            while not settings.drop_last and pad > 0:
                indices += indices[:pad]
                pad = -len(indices) % world
        return _with_occurrences(indices), cuts

    def order_done(self, task: int, stream: str, epoch: int, world_size: int) -> OrderDone:
        """As a worker answers."""
        rows, cuts = self.order(stream, epoch, world_size)
        array = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
        occurrences = array[:, 1].copy() if array[:, 1].any() else None
        return OrderDone(
            task,
            array[:, 0].copy(),
            occurrences,
            None if cuts is None else np.array(cuts, dtype=np.int64),
        )

    def batches(self, stream: str, epoch: int, rank: int, world_size: int) -> list[list[int]]:
        """The batches of a rank, as lists of its positions."""
        self.rank_rows(stream, epoch, rank, world_size)
        return self._batches[stream, epoch, rank, world_size]

    def rank_rows(self, stream: str, epoch: int, rank: int, world_size: int) -> list[Row]:
        """All rows of a rank in its order; ``batches`` are ranges of it."""
        key = (stream, epoch, rank, world_size)
        if key not in self._ranks:
            self._ranks[key], self._batches[key] = self._deal(*key)
        return self._ranks[key]

    def _deal(
        self, stream: str, epoch: int, rank: int, world: int
    ) -> tuple[list[Row], list[list[int]]]:
        settings = self.streams[stream]
        rows, cuts = self.order(stream, epoch, world)
        if cuts is None:
            mine = [row for place, row in enumerate(rows) if place % world == rank]
            return mine, _chunks(len(mine), settings)
        all_batches = [rows[a:b] for a, b in itertools.pairwise(cuts)]
        if all_batches and not settings.drop_last:
            missing = -len(all_batches) % world
            all_batches += [all_batches[i % len(all_batches)] for i in range(missing)]
        each = len(all_batches) // world
        my_batches = [all_batches[rank + i * world] for i in range(each)]
        mine, positions = [], []
        for batch in my_batches:
            positions.append(list(range(len(mine), len(mine) + len(batch))))
            mine += batch
        return mine, positions

    # --- batches ----------------------------------------------------------------------------

    def is_large(self, address: BatchAddress) -> bool:
        """Whether the batch needs more than a common slot."""
        share = self._scenario.large_share
        if not share:
            return False
        return random.Random(f"size {address}").random() < share

    def size_bytes(self, address: BatchAddress) -> int:
        """What the batch needs."""
        return BATCH_BYTES * 5 if self.is_large(address) else BATCH_BYTES

    def expected(self, address: BatchAddress) -> Expected:
        """What a trainer may be given."""
        found = self._expected.get(address)
        if found is None:
            found = self._expected[address] = self._expect(address)
        return found

    def _expect(self, address: BatchAddress) -> Expected:
        where = (address.stream, address.epoch, address.rank, address.world_size)
        order = self.rank_rows(*where)
        positions = self.batches(*where)[address.batch]
        script = self.dataset(address.stream)
        ill = script.bad | script.deadly | script.hanging
        policy = self.streams[address.stream].on_error
        codes = {ErrorCode.TOO_LARGE} if self.is_large(address) else set()
        failed = tuple((p, order[p][0]) for p in positions if order[p][0] in ill)
        total = sum(index in ill for index, _ in order)
        if failed and policy.max_count is not None and total > policy.max_count:
            codes.add(ErrorCode.TOO_MANY_FAILURES)
        if not failed:
            return Expected(tuple(order[p] for p in positions), (), frozenset(), frozenset(codes))
        if policy.policy is ErrorPolicy.RAISE:
            failures = _raised([index for _, index in failed], script)
            return Expected(None, (), failures, frozenset(codes))
        if policy.policy is ErrorPolicy.SKIP:
            rows = tuple(order[p] for p in positions if order[p][0] not in ill)
            return Expected(rows, failed, frozenset(), frozenset(codes))
        if total == len(order):
            return Expected(None, (), frozenset(), frozenset({*codes, ErrorCode.TOO_MANY_FAILURES}))
        rows = tuple(_first_good(order, p, ill) for p in positions)
        return Expected(rows, failed, frozenset(), frozenset(codes))


def _with_occurrences(indices: list[int]) -> list[Row]:
    seen: dict[int, int] = {}
    rows = []
    for index in indices:
        rows.append((index, seen.get(index, 0)))
        seen[index] = seen.get(index, 0) + 1
    return rows


def _chunks(length: int, settings: StreamSettings) -> list[list[int]]:
    size = settings.batch_size
    assert size is not None
    chunks = [list(range(a, min(a + size, length))) for a in range(0, length, size)]
    if settings.drop_last and chunks and len(chunks[-1]) < size:
        chunks.pop()
    return chunks


def _raised(ill: list[int], script: DatasetScript) -> frozenset[tuple[ErrorCode, int]]:
    if ill[0] in script.bad:
        return frozenset({(ErrorCode.SAMPLE, ill[0])})
    return frozenset(
        (ErrorCode.WORKER_TIMEOUT if index in script.hanging else ErrorCode.WORKER_DIED, index)
        for index in ill
        if index not in script.bad
    )


def _first_good(order: list[Row], position: int, ill: frozenset[int]) -> Row:
    while order[position][0] in ill:
        position = (position + 1) % len(order)
    return order[position]


def truth_rank(settings: StreamSettings, rank: int, world_size: int) -> tuple[int, int]:
    """The rank and world size that count: 0 of 1 in broadcast."""
    return (0, 1) if settings.mode is Mode.BROADCAST else (rank, world_size)
