"""``loaderd serve``: run the daemon until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import setproctitle
import uvloop

from loaderd_protocol.address import Address, resolve
from loaderd_protocol.errors import AddressError, AddressInUse, OutOfMemory
from loaderd_server import run_dir
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.config import Config
from loaderd_server.config_file import ConfigError, read_config
from loaderd_server.daemon import Daemon
from loaderd_server.memory import Budget
from loaderd_server.plans import core_settings, dataset_plans
from loaderd_server.sighup import Reloader, Source

log = logging.getLogger("loaderd")


def serve(config_file: Path, run_directory: str | None, log_level: str | None) -> int:
    """Runs a daemon; returns its exit code."""
    try:
        config = read_config(config_file)
        address = resolve(run_directory)
        _log_to_stderr(log_level or config.log_level)
        _raise_descriptor_limit()
        with run_dir.own(address):
            budget = Budget(config.memory, config.reserve)
            budget.check_machine()
            source = Source(config_file, config_file.resolve().parent, log_level)
            return uvloop.run(_serve(source, config, address, budget))
    except ConfigError as error:
        return _fail(str(error), ExitCode.CONFIG)
    except AddressInUse as error:
        return _fail(str(error), ExitCode.ADDRESS_IN_USE)
    except AddressError as error:
        return _fail(str(error), ExitCode.CONFIG)
    except OutOfMemory as error:
        return _fail(str(error), ExitCode.MEMORY)


async def _serve(source: Source, config: Config, address: Address, budget: Budget) -> int:
    setproctitle.setproctitle(f"loaderd: serve {address.run_dir}")
    loop = asyncio.get_running_loop()
    plans = dataset_plans(config, source.directory)
    daemon = Daemon(loop, address, core_settings(config), plans, budget)
    reloader = Reloader(source, config, daemon)
    stopping = asyncio.Event()

    signals: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        signals.append(number)
        if len(signals) > 1:
            log.error("%s again: ending at once", number.name)
            daemon.kill()
            os._exit(ExitCode.FORCED)
        log.info("%s: stopping", number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, reloader.ask)
    daemon.start()
    daemon.finished.add_done_callback(lambda _finished: stopping.set())
    await stopping.wait()
    reloader.stop()
    await daemon.stop()
    code = daemon.finished.result() if daemon.finished.done() else ExitCode.STOPPED
    log.info("stopped")
    _ignore_signals(loop)
    return int(code)


def _ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """What comes while the interpreter ends must not change the exit code.

    Closing the loop would give back the defaults, by which SIGTERM ends the process.
    """
    numbers = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def _raise_descriptor_limit() -> None:
    """The soft limit on descriptors is for programs that use select(); the hard one is the bound."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fail(text: str, code: ExitCode) -> int:
    sys.stderr.write(f"loaderd: {text}\n")
    return int(code)
