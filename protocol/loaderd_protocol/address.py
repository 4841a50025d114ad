"""Where a daemon is found: its run directory and what lies in it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from loaderd_protocol.errors import AddressError

#: Longest path that fits ``sockaddr_un.sun_path`` on Linux (108 bytes with the closing NUL).
SOCKET_PATH_LIMIT = 107
_LONGEST_NAME = "announce.sock"
ENVIRONMENT_VARIABLE = "LOADERD_ADDRESS"


@dataclass(frozen=True, slots=True)
class Address:
    """A run directory, by its absolute path.

    Raises: AddressError where a socket in it would pass the kernel's limit of 107 bytes.
    """

    run_dir: Path

    def __post_init__(self) -> None:
        longest = len(os.fsencode(self.run_dir / _LONGEST_NAME))
        if longest > SOCKET_PATH_LIMIT:
            room = SOCKET_PATH_LIMIT - len(_LONGEST_NAME) - 1
            raise AddressError(
                f"run directory {str(self.run_dir)!r} is {len(os.fsencode(self.run_dir))} bytes "
                f"long; a unix socket path holds {SOCKET_PATH_LIMIT} bytes, which leaves {room} "
                f"for the directory. Choose a shorter one with --run-dir."
            )

    @property
    def attach_socket(self) -> Path:
        """The unix socket where trainers attach (lease, descriptors, releases)."""
        return self.run_dir / "attach.sock"

    @property
    def announce_socket(self) -> Path:
        """The file behind the ZeroMQ ipc endpoint."""
        return self.run_dir / _LONGEST_NAME

    @property
    def announce_endpoint(self) -> str:
        """The ZeroMQ endpoint of the daemon's ROUTER."""
        return f"ipc://{self.announce_socket}"

    @property
    def lock_file(self) -> Path:
        """The file whose lock decides who owns the run directory; it holds the owner's pid."""
        return self.run_dir / "lock"


def resolve(address: str | os.PathLike[str] | None) -> Address:
    """The address a client or daemon means: given, else ``$LOADERD_ADDRESS``, else the default."""
    chosen = address if address is not None else os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen is None or os.fspath(chosen) == "":
        return Address(default_run_dir())
    return Address(Path(os.path.abspath(os.path.expanduser(os.fspath(chosen)))))


def default_run_dir() -> Path:
    """``$XDG_RUNTIME_DIR/loaderd``, else ``loaderd-<uid>`` under the temp directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "loaderd"
    return Path(tempfile.gettempdir()) / f"loaderd-{os.getuid()}"
