"""An epoch's order over the sources of a mixture: which is drawn when, by weights, and until when.

Each source is drawn at the times of a Poisson process whose rate is its weight. Of such processes,
at any moment the next one is source i with a probability of its weight over those of the sources that
still run: the draws are independent and by the weights, and weights are renormalised of themselves
where a source has ended. So nothing is drawn position by position: times are drawn source by source
and sorted. Each source has generators of its own, keyed by seed, epoch and its place in the mixture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from loaderd_server.core.tasks import Indices

Times = npt.NDArray[np.float64]
_MASK = (1 << 64) - 1
#: A weight that is smaller than this share of the largest counts as this much: times stay finite.
_LEAST_SHARE = 1e-18
#: Draws of an epoch of ``repeat`` without ``samples``: 2 GiB of order. Beyond, the weights are wrong.
_MOST_DRAWS = 2**28


class Exhausted(Enum):
    """What becomes of a source whose samples are used up, and so, when an epoch ends."""

    #: The epoch ends when such a source is drawn again.
    STOP = "stop"
    #: It begins anew; the epoch ends when each has been used up once, or after ``samples``.
    REPEAT = "repeat"
    #: It leaves; the epoch ends when all have.
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class MixingRules:
    """How sources are mixed, a weight and a sampler ("random", "sequential") for each."""

    weights: tuple[float, ...]
    samplers: tuple[str, ...]
    exhausted: Exhausted
    #: Length of an epoch of ``repeat``; None for "until each was used up".
    samples: int | None = None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> MixingRules:
        """The rules in the arguments of a SamplerPlan of kind "mixture"."""
        return cls(
            tuple(args["weights"]),
            tuple(args["samplers"]),
            Exhausted(args["exhausted"]),
            args["samples"],
        )


def mixed(seed: int, epoch: int, lengths: Sequence[int], rules: MixingRules) -> Indices:
    """The order of an epoch over sources of these lengths, as indices of their Mixture.

    Raises: ValueError where the epoch would have no usable length.
    """
    largest = max(rules.weights)
    sources = [
        _Source(seed, epoch, number, length, max(weight / largest, _LEAST_SHARE))
        for number, (length, weight) in enumerate(zip(lengths, rules.weights, strict=True))
    ]
    times = _race(sources, rules)
    starts = np.cumsum(lengths) - np.asarray(lengths)
    walks = [
        source.walk(len(drawn), sampler) + start
        for source, drawn, sampler, start in zip(
            sources, times, rules.samplers, starts, strict=True
        )
    ]
    by_time = np.argsort(np.concatenate(times), kind="stable")[: rules.samples]
    order: Indices = np.concatenate(walks)[by_time]
    return order


class _Source:
    """When one source is drawn, and which of its samples then."""

    def __init__(self, seed: int, epoch: int, number: int, length: int, rate: float) -> None:
        self.length = length
        self.rate = rate
        coordinates = f"{seed & _MASK} {epoch} {number}"
        self._clock = _generator(f"{coordinates} times")
        self._shuffler = _generator(f"{coordinates} shuffle")
        self._times: Times = np.empty(0)

    def first(self, count: int) -> Times:
        """The times of its first draws."""
        if count > len(self._times):
            self._extend(count - len(self._times))
        return self._times[:count]

    def until(self, end: float) -> Times:
        """The times of its draws up to and with ``end``."""
        while not len(self._times) or self._times[-1] <= end:
            reached = self._times[-1] if len(self._times) else 0.0
            awaited = (end - reached) * self.rate
            self._extend(int(awaited + 4 * awaited**0.5) + 16)
        return self._times[: np.searchsorted(self._times, end, side="right")]

    def walk(self, count: int, sampler: str) -> Indices:
        """Its samples for so many draws: pass after pass, each in an order of its own."""
        if sampler == "sequential":
            return np.arange(count, dtype=np.int64) % self.length
        passes = -(-count // self.length)
        rows = np.tile(np.arange(self.length, dtype=np.int64), (passes, 1))
        return self._shuffler.permuted(rows, axis=1, out=rows).reshape(-1)[:count]

    def _extend(self, more: int) -> None:
        # One running sum, whatever the pieces it is made in: times do not depend on them.
        steps = self._clock.standard_exponential(more) / self.rate
        if len(self._times):
            steps[0] += self._times[-1]
        self._times = np.concatenate([self._times, np.cumsum(steps)])


def _race(sources: Sequence[_Source], rules: MixingRules) -> list[Times]:
    """The times of each source's draws in the epoch."""
    if rules.exhausted is Exhausted.DROP:
        return [source.first(source.length) for source in sources]
    if rules.exhausted is Exhausted.STOP:
        end = min(source.first(source.length + 1)[-1] for source in sources)
        return [source.until(np.nextafter(end, 0)) for source in sources]
    if rules.samples is None:
        _refuse_endless(sources)
        end = max(source.first(source.length)[-1] for source in sources)
        return [source.until(end) for source in sources]
    return _at_least(rules.samples, sources)


def _at_least(samples: int, sources: Sequence[_Source]) -> list[Times]:
    """Times of so many draws together, and of all before the last of them."""
    end = (samples + 4 * samples**0.5 + 16) / sum(source.rate for source in sources)
    while True:
        times = [source.until(end) for source in sources]
        if sum(map(len, times)) >= samples:
            return times
        end *= 1.25


def _refuse_endless(sources: Sequence[_Source]) -> None:
    total = sum(source.rate for source in sources)
    draws = [source.length / source.rate * total for source in sources]
    slowest = int(np.argmax(draws))
    source = sources[slowest]
    most = max(_MOST_DRAWS, 8 * sum(source.length for source in sources))
    if draws[slowest] > most:
        raise ValueError(
            f"an epoch would have about {draws[slowest]:.2g} samples (at most {most} are drawn): "
            f"source {slowest + 1} of the mixture has {source.length} and {source.rate / total:.2g} "
            f"of the weight, and `exhausted: repeat` lasts until each was used up once. Set "
            f"`samples`, or give it more weight"
        )


def _generator(coordinates: str) -> np.random.Generator:
    digest = hashlib.blake2b(coordinates.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest)))
