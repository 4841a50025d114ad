"""What every batch must be: written plainly, without looking at the core, as the oracle."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tests.simulation.scenario import BATCH_BYTES, DatasetScript, Scenario

from loaderd_protocol.errors import ErrorCode
from loaderd_protocol.messages import Dealt
from loaderd_server.core.settings import ErrorPolicy, Mode, StreamSettings
from loaderd_server.core.tasks import BatchAddress, OrderDone, OrderTask

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


@dataclass(frozen=True)
class Reading:
    """What a trainer reads: an epoch of a sequence, or what earlier world sizes left of it."""

    stream: str
    seed: int
    epoch: int
    rank: int
    world_size: int
    dealt: tuple[Dealt, ...] = ()

    def address(self, batch: int) -> BatchAddress:
        """As workers are told of a batch of it."""
        return BatchAddress(self.stream, self.seed, self.epoch, batch, self.rank, self.world_size)


class Truth:
    """The pure function that the daemon serves."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.streams = {s.name: s for s in scenario.settings.streams}
        self.datasets = {d.name: d for d in scenario.datasets}
        self._orders: dict[tuple[str, int, int], tuple[list[Row], list[int] | None]] = {}
        self._batches: dict[Reading, list[list[int]]] = {}
        self._expected: dict[tuple[Reading, int], Expected] = {}
        self._ranks: dict[Reading, list[Row]] = {}

    def dataset(self, stream: str) -> DatasetScript:
        """The dataset of a stream."""
        return self.datasets[self.streams[stream].dataset]

    # --- orders -----------------------------------------------------------------------------

    def order(self, stream: str, seed: int, epoch: int) -> tuple[list[Row], list[int] | None]:
        """Rows in the order of an epoch, and the cuts of a batch sampler."""
        key = (stream, seed, epoch)
        if key not in self._orders:
            self._orders[key] = self._draw(stream, seed, epoch)
        return self._orders[key]

    def _draw(self, stream: str, seed: int, epoch: int) -> tuple[list[Row], list[int] | None]:
        settings, length = self.streams[stream], self.dataset(stream).length
        draws = random.Random(f"{stream} {seed} {epoch}")
        if stream in self._scenario.redrawn:
            indices = [draws.randrange(length) for _ in range(length)]
        else:
            indices = draws.sample(range(length), length)
        cuts = None
        if settings.batch_size is None:
            cuts = [0]
            while cuts[-1] < length:
                cuts.append(min(length, cuts[-1] + draws.randint(0, 5)))
        return _with_occurrences(indices), cuts

    def order_done(self, task: OrderTask) -> OrderDone:
        """As a worker answers."""
        rows, cuts = self.order(task.stream, task.seed, task.epoch)
        array = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
        occurrences = array[:, 1].copy() if array[:, 1].any() else None
        inverse = None
        if task.inverts:
            inverse = _inverse(array[:, 0], self.dataset(task.stream).length, occurrences is None)
        return OrderDone(
            task.task,
            array[:, 0].copy(),
            occurrences,
            None if cuts is None else np.array(cuts, dtype=np.int64),
            inverse,
        )

    def batches(self, reading: Reading) -> list[list[int]]:
        """The batches that are read, as lists of positions; a short last one with them."""
        self.rank_rows(reading)
        return self._batches[reading]

    def is_iterable(self, stream: str) -> bool:
        """Whether its dataset is."""
        return self.dataset(stream).is_iterable

    def end(self, reading: Reading, own_size: int, drop_last: bool) -> int:
        """The batch before which a trainer ends that cuts to its own size."""
        batches = self.batches(reading)
        size = own_size or self.streams[reading.stream].batch_size
        if size is None or self.is_iterable(reading.stream):
            return len(batches)
        length = sum(map(len, batches))
        needed = length - length % size if drop_last else length
        return sum(1 for batch in batches if batch[0] < needed)

    def rank_rows(self, reading: Reading) -> list[Row]:
        """All rows of a rank in its order; ``batches`` are ranges of it."""
        if reading not in self._ranks:
            self._ranks[reading], self._batches[reading] = self._deal(reading)
        return self._ranks[reading]

    def _deal(self, reading: Reading) -> tuple[list[Row], list[list[int]]]:
        settings = self.streams[reading.stream]
        if self.is_iterable(reading.stream):
            return self._deal_shards(reading)
        rows, cuts = self.order(reading.stream, reading.seed, reading.epoch)
        units = [[row] for row in rows]
        if cuts is not None:
            units = [rows[a:b] for a, b in itertools.pairwise(cuts)]
        left = list(range(len(units)))
        for part in reading.dealt:
            hands = _hands(left, part.world_size, settings.drop_last)
            over = {u for hand, count in zip(hands, part.counts, strict=True) for u in hand[:count]}
            left = [unit for unit in left if unit not in over]
        mine = _hands(left, reading.world_size, settings.drop_last)[reading.rank]
        if cuts is None:
            assert settings.batch_size is not None
            return [rows[unit] for unit in mine], _chunks(len(mine), settings.batch_size)
        order: list[Row] = []
        positions = []
        for unit in mine:
            positions.append(list(range(len(order), len(order) + len(units[unit]))))
            order += units[unit]
        return order, positions

    def _deal_shards(self, reading: Reading) -> tuple[list[Row], list[list[int]]]:
        """Batch b is unit b // shards of shard b % shards; those behind a shard's end are empty."""
        settings, length = self.streams[reading.stream], self.dataset(reading.stream).length
        size, shards = settings.batch_size, settings.shards
        assert size is not None
        units = []
        for shard in range(shards):
            mine = list(range(shard, length, shards))
            cut = [mine[a : a + size] for a in range(0, len(mine), size)]
            units.append([u for u in cut if len(u) == size or not settings.drop_last])
        batches = []
        for unit in range(max(map(len, units))):
            batches += [mine[unit] if unit < len(mine) else [] for mine in units]
        while batches and not batches[-1]:
            batches.pop()
        return [(index, 0) for index in range(length)], batches

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

    def expected(self, reading: Reading, batch: int) -> Expected:
        """What a trainer may be given."""
        found = self._expected.get((reading, batch))
        if found is None:
            found = self._expected[reading, batch] = self._expect(reading, batch)
        return found

    def _expect(self, reading: Reading, batch: int) -> Expected:
        address = reading.address(batch)
        order = self.rank_rows(reading)
        positions = self.batches(reading)[batch]
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


def _inverse(
    indices: npt.NDArray[np.int64], length: int, once: bool
) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    if not once:
        return np.sort(indices << 32 | np.arange(len(indices)))
    inverse = np.full(length, -1, np.int32)
    inverse[indices] = np.arange(len(indices), dtype=np.int32)
    return inverse


def _with_occurrences(indices: list[int]) -> list[Row]:
    seen: dict[int, int] = {}
    rows = []
    for index in indices:
        rows.append((index, seen.get(index, 0)))
        seen[index] = seen.get(index, 0) + 1
    return rows


def _chunks(length: int, size: int) -> list[list[int]]:
    return [list(range(a, min(a + size, length))) for a in range(0, length, size)]


def _hands(units: list[int], world_size: int, drop_last: bool) -> list[list[int]]:
    """Units dealt one by one, as cards, after the pack was made to divide."""
    pack = list(units)
    if drop_last:
        del pack[len(pack) - len(pack) % world_size :]
    while not drop_last and pack and len(pack) % world_size:
        pack.append(pack[len(pack) - len(units)])
    return [pack[rank::world_size] for rank in range(world_size)]


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


def reading_of(
    settings: StreamSettings,
    *,
    seed: int,
    epoch: int,
    rank: int,
    world_size: int,
    dealt: tuple[Dealt, ...] = (),
) -> Reading:
    """What a trainer reads that asks so: rank and seed count only in the modes that know them."""
    if settings.mode is not Mode.SHARD:
        rank, world_size, dealt = 0, 1, ()
    own = settings.mode is Mode.INDEPENDENT and seed >= 0
    return Reading(settings.name, seed if own else settings.seed, epoch, rank, world_size, dealt)
