"""Which rank of how many this trainer is."""

from __future__ import annotations

import os

import torch.distributed

from loaderd import arguments


def resolve(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Given, else torch.distributed's, else torchrun's environment, else 0 of 1.

    Raises: TypeError where they are no numbers, ValueError where rank is not within world_size.
    """
    default_rank, default_world = _default()
    chosen_world = arguments.whole_or("world_size", world_size, default_world, least=1)
    chosen_rank = default_rank if rank is None else arguments.whole_or("rank", rank, 0)
    if not 0 <= chosen_rank < chosen_world:
        raise ValueError(
            f"rank {chosen_rank} is not one of {chosen_world} (0 to {chosen_world - 1})"
        )
    return chosen_rank, chosen_world


def _default() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1
