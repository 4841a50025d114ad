"""Telling systemd how the service is: READY=1, RELOADING=1, STOPPING=1 (sd_notify(3)), where it asked."""

from __future__ import annotations

import contextlib
import os
import socket
import time


def notify_reloading() -> None:
    """A reload began, at this time of CLOCK_MONOTONIC; READY=1 must follow."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


def notify(state: str) -> None:
    """Sends a state to ``$NOTIFY_SOCKET``; does nothing outside systemd."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    # "@" stands for the NUL byte of an abstract socket's name.
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)
