"""Several datasets as one: their samples one source after the other, behind one range of indices."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderd_server.batching import iterables
from loaderd_server.batching.faults import text_of
from loaderd_server.batching.imports import load
from loaderd_server.datasets.statting import digest


class MixtureError(ValueError):
    """A source that cannot be mixed; the text names it, and says why and what to do."""


@dataclass(frozen=True, slots=True)
class Source:
    """One of the datasets, and its name for people."""

    name: str
    dataset: Any


class Mixture:
    """Sample ``i`` is that of the source whose range ``i`` lies in; which comes when, orders decide.

    Raises: MixtureError.
    """

    def __init__(self, sources: Sequence[Source], *, has_collate: bool = False) -> None:
        lengths = [_length(source, has_collate) for source in sources]
        self.names = tuple(source.name for source in sources)
        self._datasets = [source.dataset for source in sources]
        #: Samples of each source.
        self.lengths: npt.NDArray[np.int64] = np.array(lengths, dtype=np.int64)
        #: One past the last index of each source.
        self._ends = np.cumsum(self.lengths)
        self._starts = self._ends - self.lengths
        self._length = sum(lengths)
        #: As numbers of Python's: one index is found ten times faster in these than in an array.
        self._bounds: list[int] = self._ends.tolist()
        self.uses_only_given_rng = self._all_say("uses_only_given_rng")
        self.cacheable = self._cacheable()
        self._offer_what_all_can()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._of_source(index, lambda dataset, own_index: dataset[own_index])

    def _of_source(self, index: int, ask: Callable[[Any, int], Any]) -> Any:
        self._check(index, index)
        source = bisect_right(self._bounds, index)
        own_index = index - int(self._starts[source])
        try:
            return ask(self._datasets[source], own_index)
        except Exception as error:
            error.add_note(f"This was sample {own_index} of source {self.names[source]!r}.")
            raise

    def _all_say(self, promise: str) -> bool:
        return all(getattr(dataset, promise, False) for dataset in self._datasets)

    def _cacheable(self) -> bool | None:
        """True where all sources say so, False where one says the contrary, else None: not told."""
        said = [getattr(dataset, "cacheable", None) for dataset in self._datasets]
        return False if False in said else True if all(said) else None

    def _offer_what_all_can(self) -> None:
        """Optional methods are there where sources have them: whoever asks looks for them."""
        if self._have("fingerprint"):
            self.fingerprint = self._fingerprint
        if self._have("load_encoded") and self._have("decode"):
            self.load_encoded, self.decode = self._load_encoded, self._decode
        if any(hasattr(dataset, "will_need") for dataset in self._datasets):
            self.will_need = self._will_need

    def _have(self, method: str) -> bool:
        return all(hasattr(dataset, method) for dataset in self._datasets)

    def _fingerprint(self) -> str:
        said = [str(dataset.fingerprint()).encode() for dataset in self._datasets]
        return digest(said, enumerate(self.lengths.tolist()))

    def _load_encoded(self, index: int) -> Any:
        return self._of_source(index, lambda dataset, own_index: dataset.load_encoded(own_index))

    def _decode(self, index: int, encoded: Any) -> Any:
        return self._of_source(index, lambda dataset, own: dataset.decode(own, encoded))

    def _will_need(self, indices: npt.NDArray[np.int64]) -> None:
        parts = np.split(indices, np.searchsorted(indices, self._ends)[:-1])
        for dataset, start, part in zip(self._datasets, self._starts, parts, strict=True):
            if len(part) and hasattr(dataset, "will_need"):
                dataset.will_need(part - start)

    def _check(self, least: int, most: int) -> None:
        if least < 0 or most >= self._length:
            wrong = least if least < 0 else most
            raise IndexError(f"index {wrong} of {self._length} samples in the mixture")


class BatchedMixture(Mixture):
    """A mixture whose sources all give the samples of a batch in one call."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch: one call to each source that is in it."""
        if not len(indices):
            return []
        chosen = np.asarray(indices, dtype=np.int64)
        self._check(int(chosen.min()), int(chosen.max()))
        by_row = np.searchsorted(self._ends, chosen, side="right")
        samples: list[Any] = [None] * len(chosen)
        for source in np.unique(by_row).tolist():
            rows = np.flatnonzero(by_row == source)
            own_indices = (chosen[rows] - self._starts[source]).tolist()
            for row, sample in zip(rows.tolist(), self._load(source, own_indices), strict=True):
                samples[row] = sample
        return samples

    def _load(self, source: int, own_indices: list[int]) -> Sequence[Any]:
        name = self.names[source]
        try:
            loaded: Sequence[Any] = self._datasets[source].__getitems__(own_indices)
        except Exception as error:
            error.add_note(f"These were samples {own_indices} of source {name!r}.")
            raise
        if len(loaded) != len(own_indices):
            raise ValueError(
                f"__getitems__ of source {name!r} returned {len(loaded)} samples for "
                f"{len(own_indices)} indices"
            )
        return loaded


def mix(sources: Sequence[Source], *, has_collate: bool = False) -> Mixture:
    """The mixture of these; batched where each of them is.

    ``has_collate``: the stream has a collate of its own, so those of the sources are not asked for.
    Raises: MixtureError.
    """
    is_batched = all(getattr(source.dataset, "__getitems__", None) for source in sources)
    return (BatchedMixture if is_batched else Mixture)(sources, has_collate=has_collate)


def mixture(sources: Sequence[Mapping[str, Any]], has_collate: bool = False) -> Mixture:
    """Builds each source (name, target, args) and mixes them: the target of streams' mixtures.

    Raises: MixtureError.
    """
    return mix([_build(**source) for source in sources], has_collate=has_collate)


def _build(name: str, target: str, args: Mapping[str, Any]) -> Source:
    try:
        return Source(name, iterables.build(load(target), args))
    except Exception as error:
        raise MixtureError(
            f"source {name!r} ({target}): {type(error).__name__}: {text_of(error)}"
        ) from error


def _length(source: Source, has_collate: bool) -> int:
    fault = _fault(source.dataset, has_collate)
    if fault is not None:
        raise MixtureError(f"source {source.name!r} cannot be mixed: {fault}")
    return len(source.dataset)


def _fault(dataset: Any, has_collate: bool) -> str | None:
    if iterables.is_iterable(dataset):
        return (
            "it is iterable, and samples are mixed by index. Give it __getitem__ and __len__, or a "
            "stream of its own"
        )
    if hasattr(dataset, "batch_load"):
        return (
            "it makes whole batches (batch_load), and a batch of a mixture has samples of several "
            "sources. Name a target without batch_load, with __getitem__ or __getitems__ instead"
        )
    if hasattr(dataset, "_get_collate_fn") and not has_collate:
        return (
            "it has a collate of its own (_get_collate_fn), but a batch has samples of several "
            "sources. Set the stream's collate"
        )
    length = iterables.length_of(dataset)
    if length is None:
        return "it has no __len__. Give it one, which says how many samples it has"
    if length == 0:
        return "it is empty. Leave it out of the mixture, or see why it has no samples"
    return None
