"""Where a trainer wants to be, and in which pieces: sequences, cuts, starts; and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace

from loaderd_protocol.messages import (
    MOST_EPOCH,
    MOST_INTEGER,
    MOST_WORLD_SIZE,
    Start,
    Subscribe,
    Where,
)
from loaderd_server.core.credits import MOST_PREFETCH, VIEWS
from loaderd_server.core.endless import Producer
from loaderd_server.core.sequences import Cursor, Cut, Epoch, Sequence
from loaderd_server.core.settings import Mode
from loaderd_server.core.streams import Stream

_MOST_BATCH_SIZE = 2**20
#: How often the world size may change within one epoch.
_MOST_DEALT = 64


def sequence_of(stream: Stream, asked: Subscribe) -> Sequence:
    """The sequence that a subscription reads."""
    mode = stream.settings.mode
    rank, world_size = (asked.rank, asked.world_size) if mode is Mode.SHARD else (0, 1)
    own_seed = mode is Mode.INDEPENDENT and asked.seed >= 0
    return stream.sequence(asked.seed if own_seed else stream.settings.seed, rank, world_size)


def cut_of(stream: Stream, asked: Subscribe) -> Cut:
    """How the trainer cuts batches."""
    settings = stream.settings
    drop_last = settings.drop_last if asked.drop_last < 0 else bool(asked.drop_last)
    own_size = 0 if asked.batch_size == settings.batch_size else asked.batch_size
    return Cut(own_size, drop_last)


def wanted_credits(stream: Stream, prefetch: int, cut: Cut) -> int:
    """Credits for what is made ahead, and for views; a batch of the trainer's may lie in many slots."""
    slots = 1
    if cut.batch_size and stream.settings.batch_size:
        slots = 1 + -(-cut.batch_size // stream.settings.batch_size)
    return min(prefetch * slots, MOST_PREFETCH) + VIEWS + min(slots - 1, MOST_PREFETCH)


def found(cursor: Cursor, asked: Start) -> Start:
    """The Start with a place in numbers."""
    if asked.where is Where.EXACT:
        return asked
    sequence = cursor.sequence
    if sequence.stream.settings.mode is Mode.QUEUE:
        epoch, batch = _open_queue(sequence, asked.epoch), 0
    else:
        foremost = sequence.foremost()
        if foremost is None:
            return replace(asked, where=Where.EXACT)
        epoch, batch = foremost.number, max(0, foremost.position - foremost.outstanding)
    return replace(asked, where=Where.EXACT, epoch=epoch, batch=batch)


def _open_queue(sequence: Sequence, at_least: int) -> int:
    """The epoch of a queue that newcomers help with: the first that is not over."""
    running = [epoch.number for epoch in sequence.epochs.values() if epoch.is_unfinished_queue]
    if running:
        return min(running)
    return max((number + 1 for number in sequence.ended), default=at_least)


def produced_from(epoch: Epoch, asked: Start, shards: int) -> Epoch:
    """The epoch of an iterable dataset: as it is made for others, or begun anew where nobody is there."""
    producer = epoch.producer
    is_kept = producer is not None and producer.has_all_from(asked.batch, epoch.entries)
    if epoch.cursors or is_kept:
        return epoch
    sequence = epoch.sequence
    sequence.epochs.pop((epoch.number, epoch.dealt), None)
    fresh = sequence.epoch(epoch.number, epoch.dealt, epoch.view)
    fresh.producer = Producer.at(asked.batch, shards, asked.states)
    return fresh


def order_text(sequence: Sequence) -> str:
    """What fixes the orders of a sequence, as JSON: states of trainers are held against it."""
    stream = sequence.stream
    facts: dict[str, str | int] = dict(stream.settings.order)
    facts.update(mode=stream.settings.mode.value, seed=sequence.seed, samples=stream.samples)
    return json.dumps(facts)


# --- what is wrong --------------------------------------------------------------------------


def fault_of_start(asked: Start, mode: Mode) -> str | None:
    """Why there can be no such start, or None."""
    if not 0 <= asked.epoch <= MOST_EPOCH or asked.batch < 0:
        return f"epochs count from 0 to {MOST_EPOCH}, batches from 0"
    if not asked.dealt:
        return None
    if mode is not Mode.SHARD:
        return f"the stream is {mode.value}: only shard deals an epoch to ranks"
    if len(asked.dealt) > _MOST_DEALT:
        return f"the world size changed {len(asked.dealt)} times in it, over {_MOST_DEALT}"
    for part in asked.dealt:
        if part.world_size > MOST_WORLD_SIZE:
            return f"it was dealt to {part.world_size} ranks, over {MOST_WORLD_SIZE}"
        if len(part.counts) != part.world_size or min(part.counts, default=-1) < 0:
            return f"{part} does not count what each of its ranks was given"
    return None


def fault_of_sharing(asked: Subscribe, stream: Stream) -> str | None:
    """Why this stream cannot be read so, or None."""
    settings, mode = stream.settings, stream.settings.mode
    if asked.seed >= 0 and mode is not Mode.INDEPENDENT:
        return (
            f"seed is {asked.seed}, but stream {stream.name!r} is {mode.value}, where the stream's own "
            f"seed ({settings.seed}) counts; leave it out, or set mode: independent"
        )
    if not -1 <= asked.seed <= MOST_INTEGER:
        return f"seed is {asked.seed}; it must be from 0 to {MOST_INTEGER}"
    if not 0 <= asked.batch_size <= _MOST_BATCH_SIZE:
        return f"batch_size is {asked.batch_size}; it must be from 1 to {_MOST_BATCH_SIZE}"
    cut = cut_of(stream, asked)
    if mode is Mode.QUEUE and cut.drop_last != settings.drop_last:
        return (
            f"drop_last is {bool(asked.drop_last)}, but a queue's trainers share one: the stream's"
        )
    return fault_of_cut(stream, cut)


def fault_of_cut(stream: Stream, cut: Cut) -> str | None:
    """Why a trainer cannot cut this stream's batches as it wants to, or None."""
    why = why_uncuttable(stream)
    if not why or not cut.batch_size:
        return None
    return (
        f"stream {stream.name!r} cannot be cut to batch_size {cut.batch_size}: {why}. Leave "
        f"batch_size out, or define a stream of that batch size"
    )


def why_uncuttable(stream: Stream) -> str:
    """Why trainers cannot cut the stream's batches to another size; "" where they can."""
    if stream.settings.mode is Mode.QUEUE:
        return "a queue hands out whole batches"
    if stream.settings.batch_size is None:
        return "its sampler makes the batches"
    return stream.settings.uncuttable or stream.uncuttable
