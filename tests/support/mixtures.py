"""The order of a mixture drawn one position at a time: slow, plain, and what the fast one must equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from loaderd_server.batching.mixing import Exhausted, MixingRules

#: A source's number and the sample's index in it.
Drawn = tuple[int, int]


def plain_order(seed: int, epoch: int, lengths: Sequence[int], rules: MixingRules) -> list[Drawn]:
    """The epoch, by following the policy's words."""
    lasting = [_Lasting(seed, epoch, number, lengths, rules) for number in range(len(lengths))]
    order: list[Drawn] = []
    while (drawn := _next(lasting)) is not None:
        if rules.exhausted is Exhausted.STOP and drawn.used == drawn.length:
            return order
        order.append((drawn.number, drawn.draw()))
        if rules.exhausted is Exhausted.DROP:
            lasting = [source for source in lasting if source.used < source.length]
        if rules.exhausted is Exhausted.REPEAT and _is_over(order, lasting, rules.samples):
            return order
    return order


def _next(lasting: Sequence[_Lasting]) -> _Lasting | None:
    return min(lasting, key=lambda source: source.due, default=None)


def _is_over(order: Sequence[Drawn], lasting: Sequence[_Lasting], samples: int | None) -> bool:
    if samples is not None:
        return len(order) == samples
    return all(source.used >= source.length for source in lasting)


class _Lasting:
    """A source, and when it is drawn next."""

    def __init__(
        self, seed: int, epoch: int, number: int, lengths: Sequence[int], rules: MixingRules
    ) -> None:
        self.number, self.length = number, lengths[number]
        self.used = 0
        self._rate = rules.weights[number] / max(rules.weights)
        self._clock = _generator(f"{seed} {epoch} {number} times")
        self._samples = self._walk(seed, epoch, rules.samplers[number])
        self.due = self._clock.standard_exponential() / self._rate

    def draw(self) -> int:
        self.used += 1
        self.due += self._clock.standard_exponential() / self._rate
        return next(self._samples)

    def _walk(self, seed: int, epoch: int, sampler: str) -> Iterator[int]:
        shuffler = _generator(f"{seed} {epoch} {self.number} shuffle")
        while True:
            indices = np.arange(self.length)
            yield from (indices if sampler == "sequential" else shuffler.permuted(indices)).tolist()


def _generator(coordinates: str) -> np.random.Generator:
    digest = hashlib.blake2b(coordinates.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big")))
