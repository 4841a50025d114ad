"""A private daemon for an audit: the same configuration with another number of workers."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from loaderd_server.audit.failure import AuditFailed
from loaderd_server.cli.exit_codes import ExitCode
from loaderd_server.config_file import read_config
from loaderd_server.workers import process_setup

#: Longest start, with the building of the dataset; and longest stop.
_START_S, _STOP_S = 600.0, 10.0
_LINES = 20


@contextmanager
def serving(config_file: Path, stream: str, workers: int) -> Iterator[Path]:
    """The run directory of a daemon that is ready, and stopped at the end whatever happens.

    Raises: AuditFailed where it does not get ready, with the end of its log; ConfigError.
    """
    with tempfile.TemporaryDirectory(prefix="loaderd-audit-") as name:
        directory = Path(name)
        written = directory / config_file.name
        written.write_text(changed(config_file, stream, workers))
        read_config(written)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news,
            (directory / "log").open("w") as log,
        ):
            news.bind(os.fspath(directory / "news"))
            process = _start(written, directory, log.fileno())
            try:
                _wait_until_ready(process, news, directory / "log")
                yield directory / "run"
            finally:
                _stop(process)


def changed(config_file: Path, stream: str, workers: int) -> str:
    """The configuration's text with this stream alone, and so many workers.

    ``${ENV}`` stays as written; paths that count from the file's folder become absolute.
    """
    config = read_config(config_file)
    tree: dict[str, Any] = yaml.safe_load(config_file.read_text(encoding="utf-8"))
    folder = config_file.resolve().parent
    absolute = [str((folder / path).resolve()) for path in config.python_path]
    tree["python_path"] = [path.replace("$", "$$") for path in absolute]
    tree["workers"] = {**(tree.get("workers") or {}), "count": workers}
    tree["streams"] = {stream: tree["streams"][stream]}
    return yaml.safe_dump(tree, sort_keys=False)


def _start(config_file: Path, directory: Path, log: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), str(config_file), str(directory / "run")],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        env={**os.environ, "NOTIFY_SOCKET": str(directory / "news")},
    )  # fmt: skip


def _wait_until_ready(process: subprocess.Popen[bytes], news: socket.socket, log: Path) -> None:
    pidfd = os.pidfd_open(process.pid)
    try:
        ready, _, _ = select.select([news.fileno(), pidfd], [], [], _START_S)
        if news.fileno() in ready and news.recv(64).startswith(b"READY"):
            return
        if not ready:
            raise AuditFailed(f"the daemon was not ready in {_START_S:g} s:\n{tail(log)}")
        raise AuditFailed(f"the daemon ended:\n{tail(log)}", _code(process.wait()))
    finally:
        os.close(pidfd)


def tail(log: Path) -> str:
    """The last lines of a file."""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in lines[-_LINES:])


def _code(code: int) -> ExitCode:
    return ExitCode(code) if code in list(ExitCode) and code > 0 else ExitCode.CRASHED


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _main(parent: int, config_file: str, run_dir: str) -> int:
    """The child: a daemon that does not outlive the audit, even one that is killed."""
    from loaderd_server.cli.serve import serve

    process_setup.die_with(parent)
    return serve(Path(config_file), run_dir, "info")


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
