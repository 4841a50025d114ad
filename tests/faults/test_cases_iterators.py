"""Cases 19 and 21: what iterable datasets give, and iterators of one loader, in every mode."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from tests.support.modes import (
    COUNTED,
    HEAD,
    ITERABLE,
    LAGGING,
    connect,
    eventually,
    held,
    order_of,
    rows_streams,
)
from tests.support.serving import Daemon, serving
from tests.support.sharing import read, take
from tests.support.trainers import run

import loaderd

SHARDS = (1, 2, 3, 12)
ITEMS = """\
  items: {target: "tests.support.case_iterables:Items"}
  careless: {target: "tests.support.case_iterables:Items", args: {careless: true}}
"""


def items_streams() -> str:
    return "".join(
        f"  {dataset}-{shards}-{drop_last}: {{dataset: {dataset}, batch_size: 4, "
        f"shards: {shards}, drop_last: {drop_last}}}\n"
        for dataset in ("items", "careless")
        for shards in SHARDS
        for drop_last in ("true", "false")
    )


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    # One worker a dataset: those that start on need would look like something left behind by a test.
    head = HEAD.replace("count: 2", "count: 1")
    config = head + ITEMS + "streams:\n" + rows_streams() + items_streams() + ITERABLE
    with serving(config, tmp_path_factory.mktemp("modes")) as running:
        yield running


# --- case 19 --------------------------------------------------------------------------------

STOCK = """
import json
from torch.utils.data import DataLoader
from tests.support.case_iterables import Items
for careless in (False, True):
    for shards in json.loads(sys.argv[2]):
        for drop_last in (False, True):
            batches = DataLoader(
                Items(careless=careless), 4, num_workers=shards, drop_last=drop_last
            )
            say(json.dumps([batch.tolist() for batch in batches]))
"""


def test_case_19_shards_are_what_workers_are_to_a_stock_loader(daemon: Daemon) -> None:
    stock = iter(run(STOCK, daemon.run_dir, json.dumps(SHARDS)))
    for dataset, shards, drop_last in itertools.product(
        ("items", "careless"), SHARDS, ("false", "true")
    ):
        wanted = json.loads(next(stock))
        stream = f"{dataset}-{shards}-{drop_last}"
        with connect(daemon, stream) as one:
            assert [batch.tolist() for batch in one] == wanted, stream
            with connect(daemon, stream, start=(1, 0)) as two:  # neither duplicates nor splits
                pairs = list(itertools.zip_longest(one, two))
            assert [first.tolist() for first, _ in pairs] == wanted, stream
            assert [second.tolist() for _, second in pairs] == wanted, stream
    assert not list(stock)


def held_by(daemon: Daemon, loader: loaderd.Loader, mode: str) -> int:
    """Slots held once the loader has given back what came late for iterators that were dropped."""
    loader.stats()
    return held(daemon, mode)


# --- case 21 --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", LAGGING)
def test_case_21_iterators_of_one_loader_are_independent_and_all_slots_come_back(
    daemon: Daemon, mode: str
) -> None:
    first = 100
    truth = {epoch: order_of(mode, daemon, epoch) for epoch in range(first, first + 8)}

    def is_of(seen: list[list[int]], epoch: int) -> bool:
        """Whether that is the epoch; a queue gives what is made first."""
        return sorted(seen) == sorted(truth[epoch]) if mode == "queue" else seen == truth[epoch]

    with connect(daemon, mode, start=(first, 0)) as loader:
        pairs = [(read([one])[0], read([two])[0]) for one, two in zip(loader, loader, strict=True)]
        assert is_of([one for one, _ in pairs], first)
        assert is_of([two for _, two in pairs], first + 1)
        outer = iter(loader)
        seen = []
        for inner in range(3):
            seen += take(outer, 1)
            assert is_of(read(loader), first + 3 + inner)
        assert is_of(seen + read(outer), first + 2)
        for batch in loader:
            assert read([batch])[0] in truth[first + 6]
            break
        assert is_of(read(loader), first + 7)
        abandoned = [next(iter(loader)) for _ in range(50)]
        assert len(abandoned) == 50
        del abandoned, batch, outer
        assert eventually(lambda: held_by(daemon, loader, mode) == 0, 5)
        unfinished = [iter(loader) for _ in range(5)]
        for iterator in unfinished:
            next(iterator)
        del iterator
        kept = [next(iterator) for iterator in unfinished]
        del unfinished
    kept.clear()
    assert eventually(lambda: held_by(daemon, loader, mode) == 0, 5)


@pytest.mark.parametrize("stream", ["plain", "resumable"])
def test_case_21_an_iterable_dataset_has_an_epoch_for_each_iterator(
    daemon: Daemon, stream: str
) -> None:
    wanted = COUNTED
    with connect(daemon, stream) as loader:
        for one, two in zip(loader, loader, strict=True):
            assert one.tolist() == two.tolist()
        outer = iter(loader)
        assert next(outer).tolist() == wanted[0]
        assert [batch.tolist() for batch in loader] == wanted
        assert [batch.tolist() for batch in outer] == wanted[1:]
        abandoned = [next(iter(loader)) for _ in range(50)]
        assert [batch.tolist() for batch in abandoned] == wanted[:1] * 50
        assert [batch.tolist() for batch in loader] == wanted
        del abandoned, one, two, outer
        assert eventually(lambda: held(daemon, stream) == 0, 5)
