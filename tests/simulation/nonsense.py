"""What trainers say that makes no sense; the core must not mind."""

from __future__ import annotations

import random

from loaderd_protocol.messages import (
    NO_SLOT,
    Dealt,
    Done,
    Leave,
    Release,
    Start,
    Subscribe,
    Unsubscribe,
    Where,
)

Said = Subscribe | Start | Unsubscribe | Release | Done | Leave
SUB = 7
#: A sub that nothing comes of.
MAD_SUB = 1234


def nonsense(draws: random.Random, stream: str, iteration: int) -> Said:
    """A message of a trainer that has gone mad."""
    number = draws.choice((-1, 0, 3, 2**31, 2**63 - 1))
    return draws.choice(
        (
            Release(SUB, 2**20, number),  # no slot has this number
            Release(number, NO_SLOT, 0),
            Start(number, 1, 0, 0),
            Start(SUB, 0, number, -1),
            Unsubscribe(99),
            Subscribe(SUB, stream, 0, 1, 2, 0),
            Subscribe(MAD_SUB, "no such stream", number, number, number, number),
            Subscribe(MAD_SUB, stream, number, number, -1, number),
            Subscribe(MAD_SUB, stream, 0, 1, 2, 0, number, -1, number),
            Start(SUB, iteration, 0, 0, Where.LIVE, (Dealt(3, (number,)),)),
            Done(number, iteration, number),
        )
    )
