"""A failed batch as an exception: of the original class where that can be rebuilt, else loaderd's own."""

from __future__ import annotations

import sys
from typing import Any

from loaderd_protocol.errors import ERROR_CLASSES, BatchError, ErrorCode, Failure, SampleError

#: Classes that mean something to the trainer's own control flow: never raised for a sample.
_NEVER = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit)


class _Text(str):
    """A text whose repr is itself, as KeyError shows the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def exception_of(failure: Failure, epoch: int, batch: int) -> BaseException:
    """The exception to raise for a batch that failed; ``.failure`` tells what the worker said."""
    text = _describe(failure, epoch, batch)
    kind = ERROR_CLASSES[failure.code]
    error: BaseException | None = None
    if failure.code is ErrorCode.SAMPLE:
        error = _rebuilt(failure.class_name, text)
    if error is None:
        is_batch = issubclass(kind, BatchError)
        error = kind(text, failure) if is_batch else SampleError(text, failure)
    if getattr(error, "failure", None) is None:
        _attach(error, failure)
    return error


def _describe(failure: Failure, epoch: int, batch: int) -> str:
    kind = failure.class_name.rpartition(":")[2]
    said = f"{kind}: {failure.text}" if kind else failure.text
    which = f"sample at index {failure.index}, " if failure.index >= 0 else ""
    where = f" ({failure.where})" if failure.where else ""
    text = f"{said}\n\nin {which}batch {batch} of epoch {epoch}{where}"
    return f"{text}\n\n{failure.traceback}" if failure.traceback else text


def _rebuilt(class_name: str, text: str) -> BaseException | None:
    module, _, path = class_name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, BaseException):
        return None
    if issubclass(found, _NEVER):
        return None
    try:
        error = found(_Text(text))
        faithful = type(error) is found and text in str(error)
    except Exception:  # noqa: BLE001 - a user's constructor may raise anything
        return None
    return error if faithful else None


def _attach(error: BaseException, failure: Failure) -> None:
    try:
        error.failure = failure  # type: ignore[attr-defined]
    except AttributeError:  # a class with __slots__
        return
