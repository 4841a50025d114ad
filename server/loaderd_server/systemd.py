"""Telling systemd how the service is: READY=1, STOPPING=1 (sd_notify(3)), where it asked."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Sends a state to ``$NOTIFY_SOCKET``; does nothing outside systemd."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    # "@" stands for the NUL byte of an abstract socket's name.
    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)
