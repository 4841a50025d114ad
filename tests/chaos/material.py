"""What the chaos run serves, and to whom: a dataset made of its indices, streams of every mode, roles."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

LENGTH = 403
_WIDTH = 48
WORKERS = 2
#: The most that the slots of all streams may take together.
MEMORY_BYTES = 64 << 20

#: Slots are few, so that windows are tight; the weighted order draws indices more than once.
CONFIG = f"""
workers: {{count: {WORKERS}}}
memory: {MEMORY_BYTES}
datasets:
  rows: {{target: "tests.chaos.material:Rows"}}
streams:
  everyone:
    dataset: rows
    batch_size: 16
    seed: 5
    slots: 12
    sampler: {{weighted: {{weights: "tests.chaos.material:weights", num_samples: 350}}}}
    transform: [{{target: "tests.chaos.material:disturb"}}]
  parts: {{dataset: rows, batch_size: 8, mode: shard, slots: 12,
    transform: [{{target: "tests.chaos.material:disturb"}}]}}
  tasks: {{dataset: rows, batch_size: 16, mode: queue, slots: 10,
    transform: [{{target: "tests.chaos.material:disturb"}}]}}
  own: {{dataset: rows, batch_size: 16, mode: independent, slots: 10,
    transform: [{{target: "tests.chaos.material:disturb"}}]}}
  together: {{dataset: rows, batch_size: 16, lag: wait, patience_s: 2, window: 3, slots: 12, seed: 9,
    transform: [{{target: "tests.chaos.material:disturb"}}]}}
"""


class Rows:
    """Row i is random, by the global generators, and carries i."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int | str]:
        row = torch.full((_WIDTH,), float(index), dtype=torch.float64) + torch.rand(())
        return {"row": row, "index": index, "name": f"row {index}" * (index % 3)}


def disturb(
    sample: dict[str, torch.Tensor | int | str], rng: np.random.Generator
) -> dict[str, torch.Tensor | int | str]:
    """Adds what only the sample's keys can tell."""
    noise = rng.standard_normal(_WIDTH) + random.random()
    return {**sample, "row": sample["row"] + torch.from_numpy(noise)}  # type: ignore[operator]


def weights(dataset: Rows) -> list[float]:
    """Some rows are drawn often, some never."""
    return [float(1 + index % 4) for index in range(len(dataset))]


@dataclass(frozen=True, slots=True)
class Role:
    """What one trainer does, again and again, whatever becomes of its processes."""

    name: str
    stream: str
    rank: int = 0
    world_size: int = 1
    seed: int | None = None
    #: Of its own; None for the stream's.
    batch_size: int | None = None
    #: How long it works on a batch.
    work_s: float = 0.0
    prefetch: int = 2
    #: A guest joins where the others are, takes so many batches, and leaves in the middle; 0: stays.
    guest_for: int = 0

    @property
    def is_queue(self) -> bool:
        """Whether batches are shared out between all who have this stream."""
        return self.stream == "tasks"


ROLES = (
    Role("whole", "everyone"),
    Role("cut", "everyone", batch_size=24, work_s=0.004),
    Role("rank 0", "parts", rank=0, world_size=2),
    Role("rank 1", "parts", rank=1, world_size=2, work_s=0.002),
    Role("queue a", "tasks", prefetch=1),
    Role("queue b", "tasks", work_s=0.003),
    Role("own order", "own", seed=77),
    Role("pace a", "together"),
    Role("pace b", "together", work_s=0.002),
)
GUESTS = (
    Role("guest", "everyone", guest_for=7),
    Role("guest cut", "everyone", batch_size=40, guest_for=5),
    Role("guest own", "own", seed=3, guest_for=9),
)
BY_NAME = {role.name: role for role in (*ROLES, *GUESTS)}
