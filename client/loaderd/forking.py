"""A forked child gets its own copy of the batches it inherits, before its parent gives any back."""

from __future__ import annotations

import logging
import os
import select
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loaderd.loader import Loader

log = logging.getLogger("loaderd")

#: How long a parent waits for its child to have copied; then the child may see later batches.
PARENT_WAIT_S = 30.0

_loaders: weakref.WeakSet[Loader] = weakref.WeakSet()
#: The pipe of the fork under way: the child says on it that it has copied.
_pipe: list[int] = []


def register(loader: Loader) -> None:
    """The loader takes part in every fork of this process from now on."""
    _loaders.add(loader)


def _before() -> None:
    if any(loader.holds_views() for loader in list(_loaders)):
        _pipe.extend(os.pipe())


def _after_in_child() -> None:
    for loader in list(_loaders):
        loader.after_fork_in_child()
    if _pipe:
        reading, writing = _take_pipe()
        os.write(writing, b"x")
        os.close(reading)
        os.close(writing)


def _after_in_parent() -> None:
    if not _pipe:
        return
    reading, writing = _take_pipe()
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], PARENT_WAIT_S)
    os.close(reading)
    if not ready:
        log.warning(
            "a forked child did not copy the batches it inherited within %g s: they may change",
            PARENT_WAIT_S,
        )


def _take_pipe() -> tuple[int, int]:
    reading, writing = _pipe
    _pipe.clear()
    return reading, writing


os.register_at_fork(
    before=_before, after_in_child=_after_in_child, after_in_parent=_after_in_parent
)
