"""An exception of user code as what travels: class, text, traceback, index, place."""

from __future__ import annotations

import traceback

from loaderd_protocol.errors import ErrorCode, Failure

#: Longest text and traceback that travel; the end of a traceback says most.
_TEXT_LIMIT, _TRACEBACK_LIMIT = 4_000, 20_000


def failure_of(error: BaseException, index: int, where: str) -> Failure:
    """The failure that stands for ``error``; never raises, whatever the exception's class does."""
    kind = type(error)
    return Failure(
        ErrorCode.SAMPLE,
        index,
        f"{kind.__module__}:{kind.__qualname__}",
        text_of(error)[:_TEXT_LIMIT],
        _traceback(error)[-_TRACEBACK_LIMIT:],
        where,
    )


def text_of(error: BaseException) -> str:
    """``str(error)``, whatever the exception's class does."""
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<its __str__ raised {type(second).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - formatting calls the user's __str__ too
        return "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__name__}\n"
