"""The zygote: builds one dataset once, then forks (or, where asked, execs) its workers on request.

``python -m loaderd_server.workers.zygote zygote FD PARENT`` with the socket to the daemon;
``... worker FD PARENT NUMBER PROGRESS_FD`` is a worker that builds its own dataset (start_method: spawn).
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

from loaderd_protocol.errors import Failure
from loaderd_server.batching.faults import failure_of
from loaderd_server.batching.iterables import is_iterable, length_of
from loaderd_server.batching.maker import collates_by_itself
from loaderd_server.workers import process_setup
from loaderd_server.workers.frames import Fields, Kind, failure_fields, pack
from loaderd_server.workers.line import BlockingLine
from loaderd_server.workers.plan import DatasetPlan
from loaderd_server.workers.plan_codec import decode_plan
from loaderd_server.workers.process import Worker, build_dataset
from loaderd_server.workers.progress import ProgressPage


class Zygote:
    """The zygote's loop: fork requests in, births and deaths out."""

    def __init__(self, line: BlockingLine, plan: DatasetPlan, plan_bytes: bytes) -> None:
        self._line = line
        self._plan = plan
        self._plan_bytes = plan_bytes
        self._children: dict[int, int] = {}
        self._dataset: Any = None

    def build(self) -> bool:
        """Builds the dataset and tells the daemon how it went."""
        try:
            self._dataset = build_dataset(self._plan)
            length = length_of(self._dataset)
        except BaseException as error:  # noqa: BLE001 - user code: SystemExit too is news
            self._line.send(pack(Kind.NOT_BUILT, failure_fields(self._not_built(error))))
            return False
        gc.collect()
        gc.freeze()
        threads = len(os.listdir("/proc/self/task"))
        own_collate = collates_by_itself(self._dataset)
        self._line.send(pack(Kind.BUILT, length, threads, is_iterable(self._dataset), own_collate))
        return True

    def serve(self) -> None:
        """Forks and reaps until the daemon's end of the line closes."""
        wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakened)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        poller = select.poll()
        poller.register(self._line.end.fileno(), select.POLLIN)
        poller.register(wake, select.POLLIN)
        while True:
            self._reap()
            if not self._line.pending():
                ready = dict(poller.poll())
                if wake in ready:
                    os.read(wake, 4096)
                if self._line.end.fileno() not in ready:
                    continue
            frame = self._line.receive()
            if frame is None:
                break
            kind, fields = frame
            if kind is Kind.FORK:
                self._start(*fields)
            elif kind is Kind.NEW_PLAN:
                self._plan = decode_plan(fields[0])
        self._end_children()

    def _start(self, number: int) -> None:
        end = socket.socket(fileno=self._line.descriptors.popleft())
        progress = self._line.descriptors.popleft()
        process_setup.flush_output()
        starts = self._spawn if self._plan.process.start_method == "spawn" else self._fork
        try:
            pid = starts(number, end, progress)
        except OSError as error:  # no memory, no pids: the daemon decides when to try again
            self._line.send(pack(Kind.NOT_FORKED, number, str(error)))
            return
        finally:
            end.close()
            os.close(progress)
        self._children[pid] = number
        self._line.send(pack(Kind.FORKED, number, pid))

    def _fork(self, number: int, end: socket.socket, progress: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid != 0:
            return pid
        code = 1
        try:
            process_setup.die_with(parent)
            signal.set_wakeup_fd(-1)
            process_setup.default_signals()
            self._line.end.close()
            worker = Worker(number, self._plan, BlockingLine(end), ProgressPage(progress))
            worker.run(lambda: self._dataset)
            code = 0
        except BaseException:  # noqa: BLE001 - the fork must never return into the zygote's loop
            sys.excepthook(*sys.exc_info())
        finally:
            process_setup.flush_output()
            os._exit(code)

    def _spawn(self, number: int, end: socket.socket, progress: int) -> int:
        arguments = ["worker", str(end.fileno()), str(os.getpid()), str(number), str(progress)]
        process = subprocess.Popen(
            [sys.executable, "-m", "loaderd_server.workers.zygote", *arguments],
            stdin=subprocess.DEVNULL, pass_fds=(end.fileno(), progress), close_fds=True,
        )  # fmt: skip
        process.returncode = 0  # reaped by this loop, not by Popen
        return process.pid

    def _reap(self) -> None:
        for pid in list(self._children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._line.send(pack(Kind.ENDED, self._children.pop(pid), status))

    def _end_children(self) -> None:
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _not_built(self, error: BaseException) -> Failure:
        found = failure_of(error, -1, f"zygote {self._plan.name}, pid {os.getpid()}")
        text = (
            f"dataset {self._plan.name} ({self._plan.dataset.target}) could not be built: "
            f"{type(error).__name__}: {found.text}"
        )
        return Failure(found.code, -1, found.class_name, text, found.traceback, found.where)


def _zygote_main(end: socket.socket) -> int:
    line = BlockingLine(end)
    frame = line.receive()
    if frame is None:
        return 0
    fields: Fields = frame[1]
    plan = decode_plan(fields[0])
    process_setup.name(f"zygote {plan.name}")
    zygote = Zygote(line, plan, fields[0])
    if not zygote.build():
        return 0
    zygote.serve()
    return 0


def _worker_main(end: socket.socket, number: int, progress: int) -> int:
    line = BlockingLine(end)
    frame = line.receive()
    if frame is None:
        return 0
    plan = decode_plan(frame[1][0])
    worker = Worker(number, plan, line, ProgressPage(progress))
    worker.run(lambda: build_dataset(plan))
    return 0


def main(arguments: list[str]) -> int:
    """Runs a zygote, or a worker that was not forked."""
    role, descriptor, parent, *rest = arguments
    process_setup.die_with(int(parent))
    process_setup.default_signals()
    process_setup.print_to_stderr()
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    if role == "zygote":
        return _zygote_main(end)
    os.set_inheritable(int(rest[1]), False)
    return _worker_main(end, int(rest[0]), int(rest[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
