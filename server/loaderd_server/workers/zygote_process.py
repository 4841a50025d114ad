"""One zygote as the daemon sees it: exec'ed, watched by pidfd, started again when it dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from loaderd_protocol.errors import ErrorCode, Failure
from loaderd_server.core.events import DatasetFailed, DatasetLost
from loaderd_server.workers.frames import Fields, Kind, pack, read_failure
from loaderd_server.workers.line import LoopLine
from loaderd_server.workers.plan import DatasetPlan
from loaderd_server.workers.plan_codec import encode_plan
from loaderd_server.workers.process_setup import KEEPS_FREED_MEMORY, SINGLE_THREADED

log = logging.getLogger("loaderd.workers")

#: Deaths in a row, each before the zygote was up for long, after which the dataset has failed; more
#: where it was built before, as then the fault is hardly the dataset's.
_MOST_TRIES, _MOST_TRIES_AGAIN = 3, 10
#: Up for so long, a zygote's death is the first in a row.
_STEADY_S = 10.0
_LONGEST_REST_S = 30.0

OnFrame = Callable[[str, Kind, Fields], None]
OnLost = Callable[[str, "DatasetFailed | DatasetLost"], None]


class ZygoteProcess:
    """Keeps one zygote alive."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        plan: DatasetPlan,
        on_frame: OnFrame,
        on_lost: OnLost,
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._line: LoopLine | None = None
        self._pidfd = -1
        self._deaths = 0
        self._failure: Failure | None = None
        self._stopping = False
        #: When it was last built; None where it never was.
        self._built_at: float | None = None
        self._gone = asyncio.Event()
        self._gone.set()
        self._timer: asyncio.TimerHandle | None = None
        self.state = "not started"

    @property
    def pid(self) -> int:
        """Its pid, 0 where there is none."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Execs the zygote and sends it its plan."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        arguments = ["zygote", str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "loaderd_server.workers.zygote", *arguments],
                stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()],
                env={**KEEPS_FREED_MEMORY, **os.environ, **SINGLE_THREADED},
            )  # fmt: skip
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._gone.clear()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._ended)
        self._line = LoopLine(self._loop, ours, self._frame, lambda: None)
        self._line.send(pack(Kind.PLAN, encode_plan(self._plan)))
        self.state = "building"

    def try_start(self) -> None:
        """As ``start``; where there is no process to be had, tries again after a rest."""
        try:
            self.start()
        except OSError as error:
            self._died(f"could not be started ({error})", was_up=False)

    def change_plan(self, plan: DatasetPlan) -> None:
        """Other streams draw from the same dataset: workers forked from now on know them."""
        self._plan = plan
        self.send(pack(Kind.NEW_PLAN, encode_plan(plan)), ())

    def send(self, frame: bytes, descriptors: Sequence[int]) -> None:
        """Sends it a frame; where it is gone, its loss is on its way."""
        if self._line is not None:
            self._line.send(frame, descriptors)

    async def stop(self, deadline_s: float) -> None:
        """Ends it, and with it its workers."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            self._line.close()
        try:
            await asyncio.wait_for(self._gone.wait(), deadline_s)
        except TimeoutError:
            self.kill()
            await self._gone.wait()

    def kill(self) -> None:
        """Ends it at once."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _frame(self, kind: Kind, fields: Fields) -> None:
        if kind is Kind.NOT_BUILT:
            self._failure = read_failure(fields[0])
            return
        if kind is Kind.BUILT:
            self.state, self._built_at = "up", self._loop.time()
            self._warn_of_threads(fields[1])
        self._on_frame(self._plan.name, kind, fields)

    def _warn_of_threads(self, threads: int) -> None:
        if threads > 1 and self._plan.process.start_method == "fork":
            log.warning(
                "dataset %s has %d threads after it was built; a lock that one of them holds stays "
                "locked in forked workers. If workers hang, set workers.start_method: spawn.",
                self._plan.name, threads,
            )  # fmt: skip

    def _ended(self) -> None:
        assert self._process is not None
        assert self._line is not None
        self._line.drain()
        code = self._process.wait()
        was_up, self.state = self.state == "up", "ended"
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._line.close()
        self._process, self._line = None, None
        self._gone.set()
        if not self._stopping:
            self._died(how_exited(code), was_up)

    def _died(self, how: str, was_up: bool) -> None:
        name = self._plan.name
        if self._failure is not None:
            self._on_lost(name, DatasetFailed(name, self._failure))
            return
        up_s = self._loop.time() - self._built_at if was_up and self._built_at is not None else 0.0
        self._deaths = 1 if up_s >= _STEADY_S else self._deaths + 1
        if self._deaths >= (_MOST_TRIES if self._built_at is None else _MOST_TRIES_AGAIN):
            self._on_lost(name, DatasetFailed(name, self._given_up(how)))
            return
        log.error("the zygote of dataset %s %s; it is started again", name, how)
        if was_up:
            self._on_lost(name, DatasetLost(name, how))
        rest_s = 0.0 if self._deaths == 1 else min(2.0 ** (self._deaths - 2), _LONGEST_REST_S)
        self._timer = self._loop.call_later(rest_s, self.try_start)

    def _given_up(self, how: str) -> Failure:
        head = f"the zygote of dataset {self._plan.name} {how}"
        if self._built_at is None:
            text = (
                f"{head} before it had built {self._plan.dataset.target}, {self._deaths} times. "
                f"Build it in a plain Python process with the same arguments to see why."
            )
        else:
            text = (
                f"{head}, {self._deaths} times in a row within {_STEADY_S:g} s of being built or "
                f"before. Look at memory limits and the kernel's log; then start the daemon again."
            )
        return Failure(ErrorCode.WORKER_DIED, -1, "", text)


def how_exited(code: int) -> str:
    """A phrase for Popen's return code."""
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by signal {-code} ({signal.Signals(-code).name})"


def how_ended(status: int) -> str:
    """A phrase for a wait status."""
    return how_exited(os.waitstatus_to_exitcode(status))
