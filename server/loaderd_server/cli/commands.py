"""The commands: what each takes from argv, and which module does it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from loaderd_server.config_file import ConfigError, read_config


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    try:
        return tuple(int(part) for part in value.split(",") if part.strip())
    except ValueError:
        raise click.BadParameter(f"{value!r} is not numbers such as 64,48,7") from None


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


@main.command()
@click.argument("stream")
@click.option("--config", required=True, type=click.Path(path_type=Path), help="YAML file.")
@click.option("--trainers", type=int, help="How many; default 2, or the world size.")
@click.option(
    "--batch-sizes", default="", callback=_numbers, help="Trainers' own, such as 64,48,7; go round."
)
@click.option(
    "--workers", default="1,3", show_default=True, callback=_numbers,
    help="A private daemon is started with each number.",
)  # fmt: skip
@click.option("--epochs", type=int, default=2, show_default=True)
@click.option("--world-size", type=int, default=1, help="Ranks, for streams of mode shard.")
@click.option("--address", type=click.Path(path_type=Path), help="Audit the daemon running there.")
@click.option("--timeout-s", type=float, default=120.0, show_default=True, help="For one batch.")
@click.option("--json", "as_json", is_flag=True, help="The whole report, for scripts.")
def audit(
    config: Path, stream: str, trainers: int | None, batch_sizes: tuple[int, ...],
    workers: tuple[int, ...], epochs: int, world_size: int, address: Path | None,
    timeout_s: float, as_json: bool,
) -> None:  # fmt: skip
    """Prove that trainers of STREAM are given each sample once, in order, in the same bytes."""
    from loaderd_server.audit.plan import AuditRequest
    from loaderd_server.cli.audit import audit as run

    request = AuditRequest(
        config, stream, trainers, batch_sizes, workers, epochs, world_size, address, timeout_s
    )
    sys.exit(run(request, as_json))
