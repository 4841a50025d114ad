"""Randomness by coordinates: K = (seed, dataset, epoch, index, occurrence) keys every generator.

Measured for one key on one core: blake2b 0.3 us, Philox by setting its state 0.9 us (a new one 6.3),
``random.seed`` 2 to 4 us, ``numpy.random.seed`` 1.4 us, ``torch.default_generator.manual_seed`` 1 us
(``torch.manual_seed`` 97). So all global generators cost 7 us a sample; what draws only from the
generator it is given (``uses_only_given_rng = True``) is spared them.
"""

from __future__ import annotations

import hashlib
import random
import struct

import numpy as np
import torch

from loaderd_server.core.tasks import BatchAddress, OrderTask

_SAMPLE = struct.Struct("<qqqq")
_BATCH = struct.Struct("<qqqqq")
_ORDER = struct.Struct("<qq")
_WORDS = struct.Struct("<QQII")
_MASK = (1 << 64) - 1


class Keys:
    """Generators for the samples of one dataset."""

    def __init__(self, dataset: str) -> None:
        self._prefix = hashlib.blake2b(dataset.encode(), digest_size=24)
        self._philox = np.random.Philox(key=np.zeros(2, dtype=np.uint64))
        self._fresh = self._philox.state
        self._rng = np.random.Generator(self._philox)

    def rng(self, address: BatchAddress, index: int, occurrence: int) -> np.random.Generator:
        """The generator of a sample's transforms. One object, keyed anew by each call."""
        first, second, _, _ = self._sample(b"rng", address, index, occurrence)
        return self._keyed(first, second)

    def seed_sample(self, stage: bytes, address: BatchAddress, index: int, occurrence: int) -> None:
        """Seeds the global generators for one sample; ``stage``: b"load" or b"transform"."""
        _seed_globals(*self._sample(stage, address, index, occurrence))

    def seed_batch(self, stage: bytes, address: BatchAddress) -> None:
        """Seeds the global generators for a batch; ``stage``: b"load" or b"collate"."""
        _seed_globals(*self._batch(stage, address))

    def seed_iterator(self, address: BatchAddress, shard: int) -> None:
        """Seeds the global generators for the making of a shard's iterator."""
        _seed_globals(*self._iterator(b"iter", address, shard, 0))

    def seed_unit(self, address: BatchAddress, shard: int, unit: int) -> None:
        """Seeds the global generators for the drawing of a shard's unit."""
        _seed_globals(*self._iterator(b"unit", address, shard, unit))

    def iterator_seed(self, address: BatchAddress, shard: int) -> int:
        """What a shard's iterator finds as ``get_worker_info().seed``."""
        return self._iterator(b"info", address, shard, 0)[0] >> 1

    def seed_order(self, task: OrderTask) -> None:
        """Seeds the global generators for an epoch's order: a user's sampler may draw from them."""
        _seed_globals(*self._words(b"order", _ORDER.pack(_signed(task.seed), task.epoch)))

    def _keyed(self, first: int, second: int) -> np.random.Generator:
        key = self._fresh["state"]["key"]
        key[0], key[1] = first, second
        self._philox.state = self._fresh
        return self._rng

    def _sample(
        self, stage: bytes, address: BatchAddress, index: int, occurrence: int
    ) -> tuple[int, int, int, int]:
        seed = _signed(address.seed)
        return self._words(stage, _SAMPLE.pack(seed, address.epoch, index, occurrence))

    def _batch(self, stage: bytes, address: BatchAddress) -> tuple[int, int, int, int]:
        numbers = (address.epoch, address.batch, address.rank, address.world_size)
        return self._words(b"batch" + stage, _BATCH.pack(_signed(address.seed), *numbers))

    def _iterator(
        self, stage: bytes, address: BatchAddress, shard: int, unit: int
    ) -> tuple[int, int, int, int]:
        seed = _signed(address.seed)
        return self._words(stage, _SAMPLE.pack(seed, address.epoch, shard, unit))

    def _words(self, stage: bytes, coordinates: bytes) -> tuple[int, int, int, int]:
        digest = self._prefix.copy()
        digest.update(stage + coordinates)
        return _WORDS.unpack(digest.digest())


def _signed(seed: int) -> int:
    """Seeds from 2**63 on, which torch takes too, as the same 64 bits."""
    seed &= _MASK
    return seed - (1 << 64) if seed >> 63 else seed


def _seed_globals(first: int, second: int, third: int, _fourth: int) -> None:
    random.seed(first)
    np.random.seed(third)
    torch.default_generator.manual_seed(second >> 1)
