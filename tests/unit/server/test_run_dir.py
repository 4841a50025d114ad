"""A run directory has one owner, is private, and keeps nothing of a dead one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loaderd_protocol.address import Address
from loaderd_protocol.errors import AddressError, AddressInUse
from loaderd_server import run_dir, systemd


def test_it_is_made_private_and_holds_the_owners_pid(tmp_path: Path) -> None:
    address = Address(tmp_path / "a" / "run")
    with run_dir.own(address):
        assert address.run_dir.stat().st_mode & 0o777 == 0o700
        assert address.lock_file.read_text().strip() == str(os.getpid())
    assert address.lock_file.read_text() == ""


def test_a_second_owner_is_refused_with_the_firsts_pid(tmp_path: Path) -> None:
    address = Address(tmp_path / "run")
    with run_dir.own(address):
        with pytest.raises(AddressInUse, match=rf"pid {os.getpid()}\).*--run-dir"):
            with run_dir.own(address):
                pass
    with run_dir.own(address):
        pass


def test_a_dead_owners_sockets_are_removed(tmp_path: Path) -> None:
    script = f"""
import os, socket
from pathlib import Path
from loaderd_protocol.address import Address
from loaderd_server import run_dir
address = Address(Path({str(tmp_path / "run")!r}))
owned = run_dir.own(address)
owned.__enter__()
socket.socket(socket.AF_UNIX).bind(str(address.attach_socket))
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == -9
    address = Address(tmp_path / "run")
    assert address.attach_socket.exists()
    with run_dir.own(address):
        assert not address.attach_socket.exists()


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(AddressError, match=r"mode 777.*chmod 700"):
        with run_dir.own(Address(directory)):
            pass


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make another user's directory")
    directory = tmp_path / "run"
    directory.mkdir(mode=0o700)
    os.chown(directory, 12345, 12345)
    with pytest.raises(AddressError, match=r"belongs to uid 12345, not to uid 0"):
        with run_dir.own(Address(directory)):
            pass


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(AddressError, match="cannot be made"):
            with run_dir.own(Address(path)):
                pass


def test_systemd_is_told_where_it_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.notify("READY=1")
    for name in (str(tmp_path / "notify"), f"@loaderd-test-{os.getpid()}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(name.replace("@", "\0", 1))
            receiver.settimeout(5)
            monkeypatch.setenv("NOTIFY_SOCKET", name)
            systemd.notify("READY=1")
            assert receiver.recv(100) == b"READY=1"
