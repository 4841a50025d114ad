"""States of loaders: small, readable, checked against the stream, and dealt anew to other world sizes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loaderd.place import Place
from loaderd_protocol.errors import StateMismatch
from loaderd_protocol.messages import Dealt, ShardState

STATE_VERSION = 1
State = Mapping[str, Any]


def write_state(place: Place, stream: Stream) -> dict[str, Any]:
    """A state as plain numbers, texts and lists: JSON can carry it, and so can ``torch.save``."""
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "stream": stream.name,
        "order": json.loads(stream.order),
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
        #: What fixes the order, as the daemon told it (JSON).
        self.order = order
        self.rank = rank
        self.world_size = world_size
        #: Whether batches, not samples, are dealt to ranks.
        self.cut_by_sampler = cut_by_sampler

    @property
    def facts(self) -> dict[str, Any]:
        """What fixes the order, by name."""
        facts: dict[str, Any] = json.loads(self.order)
        return facts


def read_states(states: State | Sequence[State], stream: Stream) -> Place:
    """The place for this rank: from its own state, from all ranks' states, or from one for all.

    Raises: StateMismatch naming each difference.
    """
    given = [states] if isinstance(states, Mapping) else list(states)
    if not given:
        raise StateMismatch(
            "no state was given; give what state_dict() returned, of one rank or all"
        )
    for state in given:
        _check(state, stream)
    if stream.facts.get("mode") == "queue":
        return _of_queue(given)
    if stream.facts.get("mode") != "shard":
        return _place(given[0])
    return _of_shard(given, stream)


def differences(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    here: str = "here",
    there: str = "in the state",
) -> list[str]:
    """Each fact that is not the same, in words."""
    return [
        f"{name} is {ours.get(name)!r} {here} and {theirs.get(name)!r} {there}"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def _check(state: State, stream: Stream) -> None:
    if not isinstance(state, Mapping) or "order" not in state:
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
    missing = [key for key in ("epoch", "samples", "batches") if type(state.get(key)) is not int]
    if missing or min(state["epoch"], state["samples"], state["batches"]) < 0:
        raise StateMismatch(
            f"the state has no usable {', '.join(missing) or 'counts'}: {dict(state)}"
        )


def _place(state: State) -> Place:
    try:
        return Place(
            state["epoch"],
            state["samples"],
            state["batches"],
            dealt=tuple(Dealt(int(w), tuple(map(int, c))) for w, c in state.get("dealt", ())),
            failed=tuple(map(int, state.get("failed", ()))),
            done=tuple(map(int, state.get("done", ()))),
            states=tuple(
                ShardState(int(shard), int(unit), base64.b64decode(text))
                for shard, unit, text in state.get("shards", ())
            ),
        )
    except (TypeError, ValueError) as error:
        raise StateMismatch(f"the state cannot be read ({error}): {dict(state)}") from None


def _of_queue(given: Sequence[State]) -> Place:
    """What any of the trainers was given is not given again."""
    places = [_place(state) for state in given]
    epoch = max(place.epoch for place in places)
    done = [bound for place in places if place.epoch == epoch for bound in place.done]
    return replace(places[0], epoch=epoch, done=tuple(done))


def _of_shard(given: Sequence[State], stream: Stream) -> Place:
    worlds = {int(state.get("world_size", 1)) for state in given}
    if len(worlds) > 1:
        raise StateMismatch(f"the states are of different world sizes: {sorted(worlds)}")
    world_size = worlds.pop()
    own = [state for state in given if state.get("rank") == stream.rank]
    if world_size == stream.world_size and (own or len(given) == 1):
        return _place(own[0] if own else given[0])
    return _dealt_anew(given, world_size, stream)


def _dealt_anew(given: Sequence[State], world_size: int, stream: Stream) -> Place:
    """The rest of the epoch, for another world size than it was begun with."""
    places = {int(state.get("rank", 0)): _place(state) for state in given}
    if len(given) == 1:  # equal counts are the rule where ranks step together
        places = dict.fromkeys(range(world_size), next(iter(places.values())))
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
