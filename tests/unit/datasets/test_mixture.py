"""Several datasets as one: whose sample an index is, and what cannot be mixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from loaderd_server.batching.fetch import Fetcher
from loaderd_server.batching.keys import Keys
from loaderd_server.datasets.mixture import MixtureError, Source, mix, mixture


class Letters:
    """Sample i is a letter and i; IndexError behind the last."""

    def __init__(self, letter: str = "a", length: int = 3) -> None:
        self.letter, self.length = letter, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> str:
        if index == 13:
            raise KeyError("thirteen")
        return f"{self.letter}{range(self.length)[index]}"


class Batched(Letters):
    """Gives the samples of a batch in one call, and keeps what was asked for."""

    uses_only_given_rng = True
    cacheable = True

    def __init__(self, letter: str = "a", length: int = 3) -> None:
        super().__init__(letter, length)
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        self.asked.append(list(indices))
        return [self[index] for index in indices]


class Forgetful(Batched):
    """Gives one sample too few."""

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        return super().__getitems__(indices)[1:]


class Whole(Letters):
    """Makes whole batches."""

    def batch_load(self, indices: Sequence[int], collate: Callable[[Any], Any]) -> Any:
        return collate(list(indices))


class Collating(Letters):
    """Has a collate of its own."""

    def _get_collate_fn(self) -> Callable[[Any], Any]:
        return list


class Stream(IterableDataset[int]):
    """Only iterated."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Endless:
    """Has no length."""

    def __getitem__(self, index: int) -> int:
        return index


def generate() -> Iterator[int]:
    yield from range(3)


def failing() -> Letters:
    raise OSError("no such disk")


def test_indices_go_through_the_sources_one_after_the_other() -> None:
    mixed = mix([Source(name, Letters(name, n)) for name, n in (("a", 2), ("b", 1), ("c", 3))])
    assert len(mixed) == 6
    assert mixed.lengths.tolist() == [2, 1, 3]
    assert [mixed[index] for index in range(6)] == ["a0", "a1", "b0", "c0", "c1", "c2"]
    for wrong in (-1, 6):
        with pytest.raises(IndexError, match=f"index {wrong} of 6 samples"):
            mixed[wrong]


def test_batches_are_loaded_with_one_call_to_each_source_and_come_in_order() -> None:
    first, second = Batched("a", 3), Batched("b", 4)
    mixed: Any = mix([Source("first", first), Source("second", second)])
    assert mixed.__getitems__([5, 0, 3, 2, 5]) == ["b2", "a0", "b0", "a2", "b2"]
    assert (first.asked, second.asked) == ([[0, 2]], [[2, 0, 2]])
    assert mixed.__getitems__([]) == []
    with pytest.raises(IndexError, match="index 7 of 7"):
        mixed.__getitems__([1, 7])


def test_samples_come_at_once_and_unseeded_only_where_all_sources_say_so() -> None:
    both = mix([Source("a", Batched()), Source("b", Batched())])
    one = mix([Source("a", Batched()), Source("b", Letters())])
    assert (both.uses_only_given_rng, both.cacheable) == (True, True)
    assert (one.uses_only_given_rng, one.cacheable) == (False, None)
    is_batched = [Fetcher(m, [], Keys("d"), "", lambda _row: None).is_batched for m in (both, one)]
    assert is_batched == [True, False]


class Encoded(Batched):
    """Has its samples in an encoded form, tells of its files, and keeps the hints it is given."""

    def __init__(self, letter: str = "a", length: int = 3) -> None:
        super().__init__(letter, length)
        self.hints: list[list[int]] = []

    def load_encoded(self, index: int) -> str:
        return f"encoded {self[index]}"

    def decode(self, index: int, encoded: str) -> str:
        assert encoded == f"encoded {self[index]}"
        return self[index]

    def fingerprint(self) -> str:
        return self.letter

    def will_need(self, indices: Any) -> None:
        self.hints.append(indices.tolist())


class Random(Letters):
    """Says that it may not be kept."""

    cacheable = False


def test_a_source_that_may_not_be_kept_speaks_for_the_mixture() -> None:
    assert mix([Source("a", Batched()), Source("b", Random())]).cacheable is False


def test_what_all_sources_can_the_mixture_can() -> None:
    first, second = Encoded("a", 3), Encoded("b", 4)
    mixed: Any = mix([Source("first", first), Source("second", second)])
    assert [mixed.load_encoded(index) for index in (2, 3)] == ["encoded a2", "encoded b0"]
    assert [mixed.decode(index, mixed.load_encoded(index)) for index in (0, 6)] == ["a0", "b3"]
    mixed.will_need(np.array([0, 2, 3, 6]))
    mixed.will_need(np.array([4]))
    assert (first.hints, second.hints) == ([[0, 2]], [[0, 3], [1]])
    with pytest.raises(IndexError, match="index 7 of 7"):
        mixed.load_encoded(7)


def test_its_fingerprint_tells_its_sources_their_order_and_their_lengths() -> None:
    def told(*sources: Encoded) -> str:
        mixed: Any = mix([Source("s", source) for source in sources])
        return str(mixed.fingerprint())

    a, b = Encoded("a"), Encoded("b")
    assert told(a, b) == told(a, b)
    assert len({told(a, b), told(b, a), told(a), told(Encoded("a", 4), b)}) == 4


def test_what_one_source_cannot_the_mixture_does_not_offer() -> None:
    mixed = mix([Source("a", Encoded()), Source("b", Letters())])
    offered = [hasattr(mixed, name) for name in ("fingerprint", "load_encoded", "decode")]
    assert offered == [False, False, False]
    hinting: Any = mixed
    hinting.will_need(np.array([1, 4]))  # for the source that takes it


def test_a_source_that_gives_too_few_samples_is_named() -> None:
    mixed: Any = mix([Source("left", Batched()), Source("right", Forgetful())])
    with pytest.raises(ValueError, match="source 'right' returned 1 samples for 2 indices"):
        mixed.__getitems__([0, 3, 4])


def test_an_error_of_a_sample_tells_its_source_and_its_index_there() -> None:
    mixed = mix([Source("left", Letters("a", 5)), Source("right", Letters("b", 20))])
    with pytest.raises(KeyError) as caught:
        mixed[18]
    assert caught.value.__notes__ == ["This was sample 13 of source 'right'."]
    at_once: Any = mix([Source("only", Batched("a", 20))])
    with pytest.raises(KeyError) as caught:
        at_once.__getitems__([2, 13])
    assert caught.value.__notes__ == ["These were samples [2, 13] of source 'only'."]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("Stream", "it is iterable, and samples are mixed by index. Give it __getitem__"),
        ("generate", "it is iterable"),
        ("Whole", r"it makes whole batches \(batch_load\).* Name a target without batch_load"),
        ("Collating", r"it has a collate of its own \(_get_collate_fn\).*Set the stream's collate"),
        ("Endless", "it has no __len__. Give it one"),
    ],
)
def test_what_cannot_be_mixed_is_refused_with_a_remedy(target: str, says: str) -> None:
    sources = [
        {"name": "good", "target": f"{__name__}:Letters", "args": {}},
        {"name": "odd", "target": f"{__name__}:{target}", "args": {}},
    ]
    with pytest.raises(MixtureError, match=f"source 'odd' cannot be mixed: {says}"):
        mixture(sources)


def test_an_empty_source_is_refused() -> None:
    with pytest.raises(MixtureError, match="source 'none' cannot be mixed: it is empty"):
        mix([Source("some", Letters()), Source("none", Letters("b", 0))])


def test_a_streams_own_collate_takes_the_place_of_a_sources() -> None:
    assert len(mix([Source("own", Collating())], has_collate=True)) == 3


@pytest.mark.parametrize(
    ("target", "says"),
    [("failing", "OSError: no such disk"), ("nowhere", "ImportError: .*has no 'nowhere'")],
)
def test_a_source_that_cannot_be_built_is_named(target: str, says: str) -> None:
    target = f"{__name__}:{target}"
    with pytest.raises(MixtureError, match=rf"source 'bad' \({target}\): {says}"):
        mixture([{"name": "bad", "target": target, "args": {}}])
