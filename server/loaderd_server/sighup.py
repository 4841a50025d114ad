"""SIGHUP: the configuration is read again, and the daemon told of what changed; or nothing changes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loaderd_server.config import Config
from loaderd_server.config_file import ConfigError, read_config
from loaderd_server.core.settings import CoreSettings
from loaderd_server.plans import core_settings, dataset_plans
from loaderd_server.reload import Change, compare
from loaderd_server.workers.plan import DatasetPlan

log = logging.getLogger("loaderd")


class Reloadable(Protocol):
    """What the daemon can be told."""

    def closed_streams(self) -> tuple[str, ...]:
        """Streams that cannot be served now."""

    def reload_began(self) -> None:
        """The configuration is being read."""

    def reload(
        self, change: Change, settings: CoreSettings, plans: tuple[DatasetPlan, ...]
    ) -> None:
        """Carries a change out."""

    def reload_refused(self) -> None:
        """Nothing changes."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the configuration comes from."""

    file: Path
    #: Paths in ``python_path`` count from it, as it was when the daemon started.
    directory: Path
    #: As the command line gave it; it holds on, whatever the file says.
    log_level: str | None


class Reloader:
    """Reads the file anew for each SIGHUP; for those that come while it reads, once more."""

    def __init__(self, source: Source, config: Config, daemon: Reloadable) -> None:
        self._source = source
        #: The one that holds.
        self._config = config
        self._daemon = daemon
        self._is_asked = False
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """A SIGHUP came."""
        self._is_asked = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """The daemon ends: nothing is read any more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._is_asked:
                self._is_asked = False
                await self._reload()
        finally:
            self._task = None

    async def _reload(self) -> None:
        file = self._source.file
        log.info("SIGHUP: reading %s again", file)
        self._daemon.reload_began()
        try:
            new = await asyncio.to_thread(read_config, file)
            change = compare(self._config, new, self._daemon.closed_streams())
            plans = dataset_plans(change.config, self._source.directory)
            settings = core_settings(change.config)
        except ConfigError as error:
            self._refuse(_one_line(str(error)))
            return
        except Exception as error:
            log.debug("reading %s failed", file, exc_info=True)
            self._refuse(f"{file} cannot be used: {type(error).__name__}: {error}")
            return
        self._config = change.config
        for kept in change.kept:
            log.warning("reload: %s", kept)
        log.info("reloaded %s: streams %s", file, change)
        if self._source.log_level is None:
            logging.getLogger().setLevel(change.config.log_level.upper())
        self._daemon.reload(change, settings, plans)

    def _refuse(self, why: str) -> None:
        log.error("reload refused: %s; nothing changed", why)
        self._daemon.reload_refused()


def _one_line(text: str) -> str:
    head, *rest = text.splitlines()
    return f"{head} {'; '.join(line.strip() for line in rest)}" if rest else head
