"""Batches made and read back within one process: the worker's side and the client's, without a daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderd.batch import build
from loaderd_protocol.messages import Announce
from loaderd_server.batching.maker import Maker
from loaderd_server.batching.placing import Bytes, Written
from loaderd_server.core.settings import ErrorPolicy, Mode
from loaderd_server.core.tasks import (
    BatchAddress,
    BatchDone,
    BatchTask,
    IterateTask,
    IteratorOver,
    OrderDone,
    OrderTask,
    Place,
    Result,
)
from loaderd_server.workers.plan import (
    DatasetPlan,
    ProcessPlan,
    SamplerPlan,
    StreamPlan,
    Target,
)

SLOT_BYTES = 1 << 20


def stream_plan(**changes: Any) -> StreamPlan:
    """A stream with some settings changed."""
    settings: dict[str, Any] = {
        "name": "train", "mode": Mode.BROADCAST, "seed": 0, "batch_size": 4, "drop_last": False,
        "sampler": SamplerPlan("sequential"), "transforms": (), "collate": None,
        "on_error": ErrorPolicy.RAISE, **changes,
    }  # fmt: skip
    return StreamPlan(**settings)


class Bench:
    """A worker's maker over one dataset, with one slot."""

    def __init__(self, dataset: Any, slot_bytes: int = SLOT_BYTES, **stream: Any) -> None:
        self.slot: Bytes = np.full(slot_bytes, 0xAB, dtype=np.uint8)
        self.rows: list[int] = []
        plan = DatasetPlan("d", Target("m:d"), (), (stream_plan(**stream),), ProcessPlan())
        self.maker = Maker(plan, dataset, "worker 0, pid 1", self.rows.append, lambda _: self.slot)

    def do(
        self,
        indices: Sequence[int],
        *,
        epoch: int = 0,
        batch: int = 0,
        occurrences: Sequence[int] | None = None,
        kind: type[Any] = BatchTask,
    ) -> Result:
        """The result of a task on these indices."""
        address = BatchAddress("train", 0, epoch, batch, 0, 1)
        rows = np.array(indices, dtype=np.int64)
        counts = None if occurrences is None else np.array(occurrences, dtype=np.int64)
        places = (Place(0, 0, len(self.slot)),) if kind is BatchTask else ()
        return self.maker.do(kind(1, "d", address, rows, counts, *places))

    def iterate(
        self,
        unit: int,
        *,
        shard: int = 0,
        shards: int = 1,
        rows: int = 4,
        drop_last: bool = False,
        epoch: int = 0,
        seed: int = 0,
        state: bytes = b"",
        state_unit: int = 0,
    ) -> Result:
        """The result of asking for a unit of an iterable dataset."""
        address = BatchAddress("train", seed, epoch, unit * shards + shard, 0, 1)
        place = Place(0, 0, len(self.slot))
        shard_of = (shard, shards, unit, rows, drop_last)
        return self.maker.do(IterateTask(1, "d", address, *shard_of, place, state, state_unit))

    def unit(self, unit: int, **task: Any) -> Any:
        """The unit as a trainer sees it; None where the shard is over."""
        result = self.iterate(unit, **task)
        if isinstance(result, IteratorOver):
            return None
        assert isinstance(result, BatchDone), result
        return read(self.slot.copy(), result)

    def order(self, seed: int, epoch: int) -> list[int]:
        """The order of an epoch."""
        result = self.maker.do(OrderTask(1, "d", "train", seed, epoch))
        assert isinstance(result, OrderDone), result
        order: list[int] = result.indices.tolist()
        return order

    def batch(self, indices: Sequence[int], output: str = "torch", **task: Any) -> Any:
        """The batch of these indices as a trainer sees it."""
        result = self.do(indices, **task)
        assert isinstance(result, BatchDone), result
        return read(self.slot.copy(), result, output)


def read(slot: Bytes, written: BatchDone | Written, output: str = "torch") -> Any:
    """A written slot as the client reads it."""
    announce = Announce(
        0, 0, 0, 0, 0, 0, 0, 0, written.size_bytes, 0, written.layout,
        written.tail_offset, written.tail_bytes,
    )  # fmt: skip
    return build(slot[: written.size_bytes], announce, output)
