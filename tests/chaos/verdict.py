"""What the journals prove: nothing missing, nothing twice but what a death left in hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.chaos.journal import Entry


class Gap(Exception):
    """A batch is missing, or came twice without a reason."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one role did. ``repeated``: batches that a killed process had in hand, given again."""

    role: str
    processes: int
    batches: int
    epochs: int
    repeated: int
    reattached: int


def tally(role: str, entries: Sequence[Entry]) -> Tally:
    """Counts, without judging."""
    kinds = [entry.kind for entry in entries]
    took = [entry for entry in entries if entry.kind == "took"]
    return Tally(
        role,
        kinds.count("began"),
        len(took),
        kinds.count("ended"),
        sum((a.epoch, a.batch) == (b.epoch, b.batch) for a, b in pairwise(took)),
        sum(a.pid == b.pid and a.daemon != b.daemon for a, b in pairwise(took)),
    )


def check_ordered(role: str, entries: Iterable[Entry], lengths: Mapping[int, int] | int) -> None:
    """A role that reads every batch of its epochs: each once, in order; one in hand may come again.

    ``lengths``: the batches of an epoch. Raises: Gap.
    """
    expected = (0, 0)
    in_hand = 0
    for entry in entries:
        place = entry.epoch, entry.batch
        if entry.kind == "took":
            if place != expected or in_hand == entry.pid:
                raise Gap(f"{role}: {entry} came, not batch {expected[1]} of epoch {expected[0]}")
            in_hand = entry.pid
        elif entry.kind == "state":
            expected, in_hand = (entry.epoch, entry.batch + 1), 0
        elif entry.kind == "ended":
            length = lengths if isinstance(lengths, int) else lengths[entry.epoch]
            if expected != (entry.epoch, length):
                raise Gap(f"{role}: {entry} after batch {expected}, of {length}")
            expected = (entry.epoch + 1, 0)


@dataclass(frozen=True, slots=True)
class QueueTally:
    """``given_again``: batches that more than one process took, each for a reason."""

    epochs: int
    given_again: int


def check_queue(journals: Mapping[str, Sequence[Entry]], length: int) -> QueueTally:
    """Of each epoch that ended, every batch was done; none twice but after a death.

    Raises: Gap.
    """
    entries = sorted((e for some in journals.values() for e in some), key=lambda e: e.at)
    done: dict[int, set[int]] = defaultdict(set)
    takes: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    last: dict[int, Entry] = {}
    for entry in entries:
        if entry.kind == "took":
            takes[entry.epoch, entry.batch].append(entry)
            last[entry.pid] = entry
        elif entry.kind == "state":
            done[entry.epoch].add(entry.batch)
    ended = {entry.epoch for entry in entries if entry.kind == "ended"}
    for epoch in sorted(ended):
        missing = set(range(length)) - done[epoch]
        if missing:
            raise Gap(f"the queue's epoch {epoch} ended, but nobody did batches {sorted(missing)}")
    left = {entry.pid for entry in entries if entry.kind == "left"}
    again = 0
    for taken in takes.values():
        for first, second in pairwise(taken):
            again += 1
            died_with_it = last[first.pid] is first and first.pid not in left
            if first.daemon == second.daemon and not died_with_it:
                raise Gap(f"a queue gave out a batch twice: {first}, then {second}")
    return QueueTally(len(ended), again)
