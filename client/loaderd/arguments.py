"""What ``connect`` may be told: a wrong argument is an error here, before the daemon sees it."""

from __future__ import annotations

import math
import operator
from typing import Any

from loaderd_protocol.messages import MOST_INTEGER


def whole(name: str, value: Any, *, least: int = 0) -> int:
    """``value`` as an int, of whatever integer type it is.

    Raises: TypeError where it is none, ValueError where it is out of bounds.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it is a whole number")
    if not least <= number <= MOST_INTEGER:
        raise ValueError(f"{name} is {value!r}; it is {least} or more, at most {MOST_INTEGER}")
    return number


def whole_or(name: str, value: Any, otherwise: int, *, least: int = 0) -> int:
    """The same, and ``otherwise`` for None.

    Raises: TypeError, ValueError.
    """
    return otherwise if value is None else whole(name, value, least=least)


def flag_or(name: str, value: Any, otherwise: int) -> int:
    """A bool as 0 or 1, and ``otherwise`` for None.

    Raises: TypeError.
    """
    if value is None:
        return otherwise
    if value not in (True, False):
        raise TypeError(f"{name} is {value!r}; it is True or False")
    return int(value)


def seconds(name: str, value: Any) -> float:
    """A time.

    Raises: TypeError where it is no number, ValueError where it is negative or not a number.
    """
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; it is a number of seconds")
    if math.isnan(value) or value < 0:
        raise ValueError(f"{name} is {value!r}; it is 0 or more seconds")
    return value


def start(value: Any) -> tuple[int, int]:
    """A place to begin at, as (epoch, batch).

    Raises: ValueError for anything else.
    """
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    if not is_pair or not all(type(n) is int and 0 <= n <= MOST_INTEGER for n in value):
        raise ValueError(
            f'start is {value!r}; it is "begin", "live", or (epoch, batch), each 0 or more'
        )
    return value[0], value[1]
