"""What counts as an iterable dataset, and the copy of it that each of its iterators works on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from loaderd_server.batching.faults import text_of
from loaderd_server.core.settings import ErrorPolicy
from loaderd_server.workers.plan import StreamPlan

_ACCESS = ("__getitem__", "__getitems__", "batch_load")


@dataclass(frozen=True)
class GeneratorSource:
    """A target that makes generators: called anew for each iterator, as generators have no copies."""

    function: Callable[..., Iterator[Any]]
    args: Mapping[str, Any]

    def __iter__(self) -> Iterator[Any]:
        return self.function(**copy.deepcopy(dict(self.args)))


def build(target: Callable[..., Any], args: Mapping[str, Any]) -> Any:
    """The dataset that a target makes; a generator is kept as what makes it."""
    built = target(**args)
    if isinstance(built, GeneratorType):
        built.close()  # not begun: nothing of it runs
        return GeneratorSource(target, args)
    return built


def is_iterable(dataset: object) -> bool:
    """Whether samples come by ``iter(dataset)`` alone, not by index."""
    if isinstance(dataset, IterableDataset):
        return True
    kind = type(dataset)
    return hasattr(kind, "__iter__") and not any(_has(kind, name) for name in _ACCESS)


def length_of(dataset: Any) -> int | None:
    """``len(dataset)``, None where it has none; an iterable may also refuse to tell it."""
    if not hasattr(type(dataset), "__len__"):
        return None
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        if is_iterable(dataset):
            return None
        raise


def refuse_what_needs_indices(plan: StreamPlan) -> None:
    """Settings that an iterable dataset cannot follow.

    Raises: ValueError naming the stream, the setting and what to set.
    """
    if plan.on_error is not ErrorPolicy.RAISE:
        raise ValueError(
            f"stream {plan.name} has on_error: {plan.on_error.value}, but its dataset is iterable: "
            f"after an exception its iterator has no next sample. Set on_error: raise, and catch "
            f"what may fail in the dataset's __iter__."
        )
    if plan.sampler.kind not in ("sequential", "random"):
        raise ValueError(
            f"stream {plan.name} has a sampler ({plan.sampler.kind}), but its dataset is iterable "
            f"and gives samples in its own order. Leave out sampler, or give the dataset "
            f"__getitem__ and __len__."
        )


@dataclass(frozen=True, slots=True)
class OwnCopy:
    """A dataset for one iterator alone. ``shared_why``: why parts of it are shared; "" if none is."""

    dataset: Any
    shared_why: str = ""


def own_copy(dataset: Any) -> OwnCopy:
    """A deep copy; read-only arrays of the dataset (a map of a file in mode "r") stay shared.

    What cannot be copied deeply (open files, locks, connections) is copied one level deep.
    """
    if isinstance(dataset, GeneratorSource):
        return OwnCopy(dataset)
    try:
        return OwnCopy(copy.deepcopy(dataset, _read_only_arrays(dataset)))
    except Exception as error:  # noqa: BLE001 - a user's __deepcopy__, __reduce__ or __setstate__
        return OwnCopy(copy.copy(dataset), f"{type(error).__name__}: {text_of(error)}")


def _read_only_arrays(dataset: Any) -> dict[int, Any]:
    """A memo that makes ``deepcopy`` pass over them."""
    return {
        id(value): value
        for value in getattr(dataset, "__dict__", {}).values()
        if isinstance(value, np.ndarray) and not value.flags.writeable
    }


def _has(kind: type, name: str) -> bool:
    found = getattr(kind, name, None)
    # torch's Dataset has a __getitem__ that only raises NotImplementedError.
    return found is not None and found is not getattr(Dataset, name, None)
