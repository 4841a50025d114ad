"""What a new configuration changes: streams and datasets that come, go or stay; settings that cannot."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from loaderd_server.config import Config
from loaderd_server.config_file import ConfigError, cross_check
from loaderd_server.plans import dataset_name, datasets_of

#: What a running daemon can change; every other setting is kept until it is started again.
_CHANGEABLE = ("datasets", "streams", "log_level")


@dataclass(frozen=True, slots=True)
class Kept:
    """A setting that differs, and holds on as it was."""

    name: str
    running: object
    asked: object

    def __str__(self) -> str:
        return f"{self.name} stays {self.running!r}; restart to apply {self.asked!r}"


@dataclass(frozen=True, slots=True)
class Change:
    """From one configuration to the next. Names are of streams where nothing else is said."""

    #: What holds from now on.
    config: Config
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    unchanged: tuple[str, ...]
    #: Datasets whose processes end, and those to be built; one that changed is in both.
    datasets_gone: tuple[str, ...]
    datasets_new: tuple[str, ...]
    kept: tuple[Kept, ...]

    def __str__(self) -> str:
        parts = ("added", "changed", "removed", "unchanged")
        return "; ".join(f"{part}: {', '.join(getattr(self, part)) or 'none'}" for part in parts)


def compare(old: Config, new: Config, closed: Collection[str] = ()) -> Change:
    """The change from ``old``, which is running, to ``new``.

    Streams that are ``closed`` by an error are tried again, and so is a dataset of only such.
    Raises: ConfigError, where ``new`` cannot be used with the settings that are kept.
    """
    kept = tuple(_kept(old, new))
    config = _with_kept(old, new)
    problems = cross_check(config)
    if problems:
        why = f"; {', '.join(map(str, kept))}" if kept else ""
        raise ConfigError(
            "\n".join([f"the new configuration cannot be used by this daemon{why}:", *problems])
        )
    before, after = datasets_of(old), datasets_of(config)
    broken = _broken(old, closed)
    differ = {name for name in before if name in broken or before[name] != after.get(name)}
    ours = {name: stream for name, stream in config.streams.items() if name in old.streams}
    changed = tuple(
        name
        for name, stream in ours.items()
        if stream != old.streams[name] or name in closed or dataset_name(name, stream) in differ
    )
    return Change(
        config=config,
        added=tuple(name for name in config.streams if name not in old.streams),
        changed=changed,
        removed=tuple(name for name in old.streams if name not in config.streams),
        unchanged=tuple(name for name in ours if name not in changed),
        datasets_gone=tuple(name for name in before if name in differ),
        datasets_new=tuple(name for name in after if name in differ or name not in before),
        kept=kept,
    )


def _broken(config: Config, closed: Collection[str]) -> set[str]:
    """Datasets of which no stream could be served."""
    serving = {dataset_name(n, s) for n, s in config.streams.items() if n not in closed}
    return {name for name in datasets_of(config) if name not in serving}


def _with_kept(old: Config, new: Config) -> Config:
    fixed = [name for name in Config.model_fields if name not in _CHANGEABLE]
    return new.model_copy(update={name: getattr(old, name) for name in fixed})


def _kept(old: BaseModel, new: BaseModel, prefix: str = "") -> Iterator[Kept]:
    for name in type(old).model_fields:
        if not prefix and name in _CHANGEABLE:
            continue
        running: Any = getattr(old, name)
        asked: Any = getattr(new, name)
        if isinstance(running, BaseModel) and isinstance(asked, BaseModel):
            yield from _kept(running, asked, f"{prefix}{name}.")
        elif running != asked:
            yield Kept(f"{prefix}{name}", running, asked)
