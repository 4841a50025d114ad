"""A daemon that ends while a trainer attaches is a lost daemon, whatever the moment."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import loaderd
from loaderd import connection
from loaderd_protocol.address import Address


def test_a_daemon_that_dies_before_it_accepts_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "attach.sock"))
    listener.listen()
    dial = connection._dial

    def dial_in_time(address: Address) -> socket.socket:
        dialed = dial(address)
        listener.close()
        return dialed

    monkeypatch.setattr(connection, "_dial", dial_in_time)
    with pytest.raises(loaderd.DaemonLost, match="ended while this trainer attached"):
        loaderd.connect("train", address=tmp_path)
