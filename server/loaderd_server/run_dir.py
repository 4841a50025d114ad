"""The run directory: made private, owned by whoever holds its lock, cleaned of a dead owner's sockets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator

from loaderd_protocol.address import Address
from loaderd_protocol.errors import AddressError, AddressInUse


@contextlib.contextmanager
def own(address: Address) -> Iterator[None]:
    """Owns a run directory: one daemon at a time, by a lock that ends with the process.

    Raises: AddressInUse naming the owner's pid; AddressError where the directory cannot be used.
    """
    _prepare(address)
    descriptor = os.open(address.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, address)
        _remove_sockets(address)
        yield
        _remove_sockets(address)
        # The file stays: removing it would let two daemons lock two files of one name.
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _prepare(address: Address) -> None:
    directory = address.run_dir
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.stat(directory)
    except OSError as error:
        raise AddressError(
            f"run directory {directory} cannot be made: {error.strerror}. Choose another with "
            f"--run-dir."
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise AddressError(f"run directory {directory} is not a directory. Choose another.")
    if found.st_uid != os.getuid():
        raise AddressError(
            f"run directory {directory} belongs to uid {found.st_uid}, not to uid {os.getuid()}. "
            f"Choose another with --run-dir."
        )
    if found.st_mode & 0o022:
        raise AddressError(
            f"run directory {directory} has mode {stat.S_IMODE(found.st_mode):o}: others can write "
            f"in it. Run chmod 700 on it, or choose another with --run-dir."
        )


def _lock(descriptor: int, address: Address) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise AddressInUse(
            f"a daemon (pid {owner}) already serves {address.run_dir}. Stop it, or start this one "
            f"with another --run-dir."
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def _remove_sockets(address: Address) -> None:
    for socket in (address.attach_socket, address.announce_socket):
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
