"""What the exit code of ``loaderd`` tells; docs/operations.md says the same to people."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command."""

    STOPPED = 0
    CRASHED = 1
    #: ``loaderd audit``: the same number, as a test that fails has.
    RULE_BROKEN = 1
    CONFIG = 2
    ADDRESS_IN_USE = 3
    MEMORY = 4
    NO_STREAM = 5
    NO_DAEMON = 6
    FORCED = 130
