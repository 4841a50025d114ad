"""One call of ``Core.handle``: the time it happens at, and the actions it leads to."""

from __future__ import annotations

from loaderd_server.core.actions import Action, Log, Severity, WakeAt


class Turn:
    """Shared by all parts of the core; the engine begins and ends each turn."""

    def __init__(self) -> None:
        #: The shell's monotonic time, in seconds; parts of the core never ask a clock.
        self.now = 0.0
        #: Tasks given to workers so far: the core's own measure of who was served when.
        self.tick = 0
        self._actions: list[Action] = []
        self._armed_at: float | None = None

    def do(self, action: Action) -> None:
        """Adds an action; the shell carries them out in this order."""
        self._actions.append(action)

    def log(self, severity: Severity, text: str) -> None:
        """Adds a line for the daemon's log."""
        self._actions.append(Log(severity, text))

    def wake_at(self, deadline: float | None) -> None:
        """Asks for a TimerFired no later than ``deadline``.

        Deadlines mostly move to later: a timer that is already set for earlier is left alone, so a
        batch costs no timer.
        """
        if deadline is None or (self._armed_at is not None and self._armed_at <= deadline):
            return
        self._armed_at = deadline
        self._actions.append(WakeAt(deadline))

    def timer_fired(self) -> None:
        """The timer that was set is gone."""
        self._armed_at = None

    def take(self) -> list[Action]:
        """The actions of this turn; the next turn starts with none."""
        actions, self._actions = self._actions, []
        return actions
