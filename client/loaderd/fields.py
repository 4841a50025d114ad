"""One saved state, read field by field: what comes from a file may be anything."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loaderd.place import Place
from loaderd_protocol.errors import StateMismatch
from loaderd_protocol.messages import MOST_EPOCH, MOST_INTEGER, MOST_WORLD_SIZE, Dealt, ShardState


@dataclass(frozen=True, slots=True)
class Saved:
    """A state's place, and the rank that it was taken of."""

    place: Place
    rank: int
    world_size: int


#: What a state has; anything else in it is not looked at.
_FIELDS = (
    "version", "stream", "order", "epoch", "samples", "batches", "rank", "world_size", "dealt", "failed",
    "done", "shards",
)  # fmt: skip


def check_plain(state: Mapping[str, Any]) -> None:
    """Every field is of numbers, texts and lists: others can't even be compared, or shown.

    Raises: StateMismatch naming the field that is not.
    """
    for name in _FIELDS:
        try:
            json.dumps(state.get(name), default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            why = f"{name} has what JSON cannot carry, so it is not as loaderd wrote it ({error})"
            raise _unreadable(state, why) from error


def _plain(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def saved(state: Mapping[str, Any]) -> Saved:
    """The state in types of our own.

    Raises: StateMismatch naming the field that cannot be read.
    """
    place = Place(
        _whole(state, "epoch", most=MOST_EPOCH),
        _whole(state, "samples"),
        _whole(state, "batches"),
        dealt=tuple(_dealt(part, state) for part in _list(state, "dealt")),
        failed=_numbers(state, "failed"),
        done=_ranges(state, "done"),
        states=tuple(_shard(known, state) for known in _list(state, "shards")),
    )
    world_size = _whole(state, "world_size", least=1, most=MOST_WORLD_SIZE, default=1)
    rank = _whole(state, "rank", most=world_size - 1, default=0)
    return Saved(place, rank, world_size)


def _whole(
    state: Mapping[str, Any],
    name: str,
    *,
    least: int = 0,
    most: int = MOST_INTEGER,
    default: Any = None,
) -> int:
    value = state.get(name, default)
    if not _is_whole(value, least, most):
        raise _unreadable(state, f"{name} is {value!r}, not a number from {least} to {most}")
    return int(value)


def _is_whole(value: Any, least: int = 0, most: int = MOST_INTEGER) -> bool:
    return type(value) is int and least <= value <= most


def _list(state: Mapping[str, Any], name: str) -> list[Any]:
    value = state.get(name, ())
    if not isinstance(value, list | tuple):
        raise _unreadable(state, f"{name} is {value!r}, not a list")
    return list(value)


def _numbers(state: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = tuple(_list(state, name))
    if not all(_is_whole(value) for value in values):
        raise _unreadable(
            state, f"{name} is {values!r}, not a list of numbers from 0 to {MOST_INTEGER}"
        )
    return values


def _ranges(state: Mapping[str, Any], name: str) -> tuple[int, ...]:
    bounds = _numbers(state, name)
    pairs = zip(bounds[::2], bounds[1::2], strict=False)
    if len(bounds) % 2 or any(first >= end for first, end in pairs):
        raise _unreadable(state, f"{name} is {bounds!r}, not pairs of (first, last + 1)")
    return bounds


def _dealt(part: Any, state: Mapping[str, Any]) -> Dealt:
    if isinstance(part, list | tuple) and len(part) == 2:
        world_size, counts = part
        is_list = isinstance(counts, list | tuple) and len(counts) == world_size
        if is_list and 0 < world_size <= MOST_WORLD_SIZE and all(map(_is_whole, counts)):
            return Dealt(len(counts), tuple(counts))
    raise _unreadable(
        state, f"dealt has {part!r}, not (world size, what each of its ranks was given)"
    )


def _shard(known: Any, state: Mapping[str, Any]) -> ShardState:
    if isinstance(known, list | tuple) and len(known) == 3:
        shard, unit, text = known
        if _is_whole(shard) and _is_whole(unit) and isinstance(text, str):
            try:
                return ShardState(shard, unit, base64.b64decode(text, validate=True))
            except ValueError:
                pass
    raise _unreadable(state, f"shards has {known!r}, not (shard, batch, its state in base64)")


def _unreadable(state: Mapping[str, Any], why: str) -> StateMismatch:
    stream = state.get("stream")
    name = repr(stream) if isinstance(stream, str) else "without a name"
    return StateMismatch(
        f"the state of stream {name} cannot be read: {why[:300]}. Give what "
        f"state_dict() returned, as it was"
    )
