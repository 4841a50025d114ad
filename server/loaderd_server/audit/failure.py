"""Why an audit could not be carried out: that is neither a pass nor a broken rule."""

from __future__ import annotations

from loaderd_server.cli.exit_codes import ExitCode


class AuditFailed(Exception):
    """The text says what happened and what to do; ``code`` is what the command exits with."""

    def __init__(self, text: str, code: ExitCode = ExitCode.CRASHED) -> None:
        super().__init__(text)
        self.code = code
