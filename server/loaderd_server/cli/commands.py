"""The commands: what each takes from argv, and which module does it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from loaderd_server.config_file import ConfigError, read_config


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="loaderd")
def main() -> None:
    """A data-serving daemon for PyTorch training."""


@main.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), help="YAML file.")
@click.option("--run-dir", help="Where sockets and lock lie; trainers connect to it.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much to log."
)
def serve(config: Path, run_dir: str | None, log_level: str | None) -> None:
    """Run the daemon until SIGTERM or SIGINT; SIGHUP has it read its configuration again."""
    from loaderd_server.cli.serve import serve as run

    sys.exit(run(config, run_dir, log_level))


@main.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), help="YAML file.")
def check(config: Path) -> None:
    """Check a configuration without serving it."""
    try:
        found = read_config(config)
    except ConfigError as error:
        click.echo(f"loaderd: {error}", err=True)
        sys.exit(2)
    click.echo(f"{config} is right: streams {', '.join(found.streams)}")


@main.command()
@click.option("--address", help="The daemon's run directory.")
@click.option("--json", "as_json", is_flag=True, help="The whole document, for scripts.")
def status(address: str | None, as_json: bool) -> None:
    """Show what a running daemon is doing."""
    from loaderd_server.cli.status import status as run

    sys.exit(run(address, as_json))
