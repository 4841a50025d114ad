"""Targets: "package.module:qualname" to the thing it names."""

from __future__ import annotations

import importlib
from typing import Any


def load(target: str) -> Any:
    """Imports what a target names.

    Raises: ImportError naming the part that is not there, and where it was looked for.
    """
    module_name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise ImportError(
                f"target {target!r}: there is no module {error.name!r}. Install it, or add its "
                f"folder to python_path."
            ) from error
        raise
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ImportError(f"target {target!r}: {module_name!r} has no {path!r}") from None
    return found
