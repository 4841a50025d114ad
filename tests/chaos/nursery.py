"""The nursery: imports torch once and forks the trainers, so that hundreds can be started in a run.

``python -m tests.chaos.nursery RUN_DIR HOME`` reads a role's name a line and answers
``started PID NAME``; later, ``ended PID STATUS``.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from pathlib import Path

from tests.chaos import trainer
from tests.chaos.material import BY_NAME, Role


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def _reap(alive: set[int]) -> None:
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        alive.discard(pid)
        _say(f"ended {pid} {os.waitstatus_to_exitcode(status)}")


def _child(role: Role, address: Path, home: Path) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        errors = os.open(home / f"{role.name}.stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target, source in ((0, nothing), (1, nothing), (2, errors)):
            os.dup2(source, target)
        os.close(nothing)
        os.close(errors)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        code = trainer.run(role, address, home / f"{role.name}.journal")
    except BaseException:  # noqa: BLE001 - the fork must never return into the nursery's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(address: Path, home: Path) -> None:
    """Forks until its standard input closes, then kills whoever is left."""
    alive: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap(alive))
    gc.freeze()
    for line in sys.stdin:
        # The death of a child is told after its birth.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        role = BY_NAME[line.strip()]
        pid = os.fork()
        if pid == 0:
            _child(role, address, home)
        alive.add(pid)
        _say(f"started {pid} {role.name}")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
