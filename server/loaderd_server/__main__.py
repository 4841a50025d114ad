"""The command line's entry; it says so where the daemon's own dependencies are not installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs ``loaderd``."""
    try:
        from loaderd_server.cli.commands import main as commands
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("loaderd"):
            raise
        sys.exit(
            f"loaderd: the daemon needs {error.name}, which is not installed. "
            f'Install its extra: pip install "loaderd[server]"'
        )
    commands()


if __name__ == "__main__":
    main()
