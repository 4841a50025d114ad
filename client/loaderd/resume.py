"""States of loaders: small, readable, checked against the stream, and dealt anew to other world sizes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loaderd.fields import Saved, check_plain, saved
from loaderd.place import Place
from loaderd_protocol.errors import StateMismatch
from loaderd_protocol.messages import Dealt

STATE_VERSION = 1
State = Mapping[str, Any]


def write_state(place: Place, stream: Stream) -> dict[str, Any]:
    """A state as plain numbers, texts and lists: JSON can carry it, and so can ``torch.save``."""
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "stream": stream.name,
        "order": stream.facts,
        "epoch": place.epoch,
        "samples": place.samples,
        "batches": place.batches,
        "rank": stream.rank,
        "world_size": stream.world_size,
    }
    if place.dealt:
        state["dealt"] = [[part.world_size, list(part.counts)] for part in place.dealt]
    if place.failed:
        state["failed"] = list(place.failed)
    if place.done:
        state["done"] = list(place.done)
    if place.states:
        state["shards"] = [
            [known.shard, known.unit, base64.b64encode(known.state).decode("ascii")]
            for known in place.states
        ]
    return state


class Stream:
    """What a state is held against: the stream as this trainer reads it."""

    def __init__(
        self, name: str, order: str, rank: int, world_size: int, *, cut_by_sampler: bool
    ) -> None:
        self.name = name
        #: What fixes the order, by name; ``order`` is how the daemon told it (JSON).
        self.facts: dict[str, Any] = json.loads(order)
        self.rank = rank
        self.world_size = world_size
        #: Whether batches, not samples, are dealt to ranks.
        self.cut_by_sampler = cut_by_sampler


def read_states(states: State | Sequence[State], stream: Stream) -> Place:
    """The place for this rank: from its own state, from all ranks' states, or from one for all.

    Raises: StateMismatch naming each difference.
    """
    if not isinstance(states, Mapping | list | tuple):
        raise StateMismatch(f"{str(states)[:80]!r} is neither a state nor a list of states")
    given = [states] if isinstance(states, Mapping) else states
    if not given:
        raise StateMismatch(
            "no state was given; give what state_dict() returned, of one rank or all"
        )
    for state in given:
        _check(state, stream)
    read = [saved(state) for state in given]
    mode = stream.facts.get("mode")
    if mode == "queue":
        return _of_queue(read, stream)
    if mode != "shard":
        return next((one.place for one in read if one.rank == stream.rank), read[0].place)
    return _of_shard(read, stream)


def differences(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    here: str = "here",
    there: str = "in the state",
) -> list[str]:
    """Each fact that is not the same, in words."""
    return [
        f"{name} is {ours.get(name)!r} {here} and {theirs.get(name)!r} {there}"
        for name in sorted({*ours, *theirs}, key=str)
        if ours.get(name) != theirs.get(name)
    ]


def _check(state: State, stream: Stream) -> None:
    if isinstance(state, Mapping):
        check_plain(state)
    if not isinstance(state, Mapping) or not isinstance(state.get("order"), Mapping):
        raise StateMismatch(f"{str(state)[:80]!r} is no state of a loaderd loader")
    if state.get("version") != STATE_VERSION:
        raise StateMismatch(
            f"the state has version {state.get('version')!r}, this loaderd reads {STATE_VERSION}"
        )
    found = differences(stream.facts, state["order"])
    if found:
        raise StateMismatch(
            f"the state does not fit stream {stream.name!r}: {'; '.join(found)}. Resume with the "
            f"settings it was made with, or start anew"
        )


def _of_queue(given: Sequence[Saved], stream: Stream) -> Place:
    """What any of the trainers was given is not given again."""
    epoch = max(one.place.epoch for one in given)
    places = [one.place for one in given if one.place.epoch == epoch]
    own = next((one.place for one in given if one.rank == stream.rank), given[0].place)
    counts = own if own.epoch == epoch else Place(epoch)
    done = tuple(bound for place in places for bound in place.done)
    failed = sorted({position for place in places for position in place.failed})
    return replace(counts, done=done, failed=tuple(failed))


def _of_shard(given: Sequence[Saved], stream: Stream) -> Place:
    worlds = {one.world_size for one in given}
    if len(worlds) > 1:
        raise StateMismatch(f"the states are of different world sizes: {sorted(worlds)}")
    world_size = worlds.pop()
    own = [one for one in given if one.rank == stream.rank]
    if world_size == stream.world_size and own:
        return own[0].place
    if world_size == stream.world_size and len(given) == 1:
        return replace(given[0].place, failed=())  # they are positions of the other's order
    return _dealt_anew(given, world_size, stream)


def _dealt_anew(given: Sequence[Saved], world_size: int, stream: Stream) -> Place:
    """The rest of the epoch, for another world size than it was begun with."""
    places = {one.rank: one.place for one in given}
    if len(places) < len(given):
        ranks = sorted(one.rank for one in given)
        raise StateMismatch(f"there are two states of one rank: the ranks are {ranks}")
    if len(given) == 1:  # equal counts are the rule where ranks step together
        places = dict.fromkeys(range(world_size), given[0].place)
    missing = sorted(set(range(world_size)) - places.keys())
    if missing:
        raise StateMismatch(
            f"states of ranks {missing} of {world_size} are missing: give all, or one that stands for "
            f"all as their counts are equal"
        )
    kinds = {(place.epoch, place.dealt) for place in places.values()}
    if len(kinds) > 1:
        epochs = {rank: place.epoch for rank, place in sorted(places.items())}
        raise StateMismatch(
            f"the ranks' states are not of one epoch (rank: epoch): {epochs}; save them at one step"
        )
    epoch, dealt = kinds.pop()
    counts = tuple(
        places[rank].batches if stream.cut_by_sampler else places[rank].samples
        for rank in range(world_size)
    )
    if not any(counts):
        return Place(epoch, dealt=dealt)
    return Place(epoch, dealt=(*dealt, Dealt(world_size, counts)))
