"""What is likely to be loaded soon, for datasets that read ahead."""

from __future__ import annotations

import numpy as np

from loaderd_server.core.orders import RankOrder
from loaderd_server.core.sequences import View
from loaderd_server.core.streams import Stream
from loaderd_server.core.tasks import Indices

NO_SAMPLES: Indices = np.empty(0, np.int64)
#: Batches of which hints are given.
_BATCHES = 2


def coming(stream: Stream, view: View, positions: Indices | range) -> Indices | None:
    """Indices behind these positions that are not in the cache, ascending; None where nobody asks."""
    if not stream.reads_ahead or not isinstance(view, RankOrder) or not len(positions):
        return None
    first = int(positions[-1]) + 1
    samples, _ = view.samples(range(first, min(first + _BATCHES * len(positions), view.length)))
    if stream.cache is not None and stream.cache.is_on and view.fits:
        samples = samples[stream.cache.index.absent(samples)]
    return np.unique(samples)
