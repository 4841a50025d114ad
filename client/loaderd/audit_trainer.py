"""A trainer for ``loaderd audit``: iterates a stream by the public API and says what it was given.

``python -m loaderd.audit_trainer STREAM --address DIR ...``: a line when it has subscribed, then, once
a line came in on stdin, a line of JSON a batch (``loaderd_protocol.audits``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

import loaderd
from loaderd_protocol.audits import READY, SeenBatch, encode_seen
from loaderd_protocol.digests import Digester, tensors_of
from loaderd_protocol.errors import BatchError, LoaderdError

#: So many errors in one epoch say enough.
_MOST_ERRORS = 100

Digest = Callable[[Any], tuple[str, ...]]


def main(arguments: list[str] | None = None) -> int:
    """Runs the trainer; returns its exit code. Errors that are no batch's end it."""
    asked = _parser().parse_args(arguments)
    options = {name: getattr(asked, name) for name in ("batch_size", "seed")}
    given = {name: value for name, value in options.items() if value is not None}
    with loaderd.connect(
        asked.stream, address=asked.address, timeout_s=asked.timeout_s,
        rank=asked.rank, world_size=asked.world_size, **given,
    ) as loader:  # fmt: skip
        _say(READY)
        if not sys.stdin.readline():
            return 1
        digest = _digest_of(whole=asked.whole)
        for epoch in range(asked.epochs):
            for seen in _epoch(loader, epoch, digest):
                _say(encode_seen(seen))
    return 0


def _epoch(loader: Any, epoch: int, digest: Digest) -> Iterator[SeenBatch]:
    iterator = iter(loader)
    errors = 0
    while True:
        digests: tuple[str, ...] = ()
        error = ""
        try:
            digests = digest(next(iterator))
        except StopIteration:
            break
        except BatchError as failed:
            error = _told(failed)
        except LoaderdError:
            raise
        except Exception as failed:  # noqa: BLE001 - a sample's exception is of any class
            error = _told(failed)
        errors += bool(error)
        if errors > _MOST_ERRORS:
            raise RuntimeError(f"{errors} errors in epoch {epoch}; the last: {error}")
        yield SeenBatch(epoch, digests, error, _failures(loader))
    if loader.failures:
        yield SeenBatch(epoch, (), "", _failures(loader))


def _failures(loader: Any) -> tuple[loaderd.FailedSample, ...]:
    failed = tuple(loader.failures)
    loader.failures.clear()
    return failed


def _told(error: Exception) -> str:
    """The first paragraph: class and text."""
    text = str(error).partition("\n\n")[0]
    return f"{type(error).__name__}: {text}"


def _digest_of(*, whole: bool) -> Digest:
    digester = Digester(tensors_of(torch))
    return (lambda batch: (digester.whole(batch),)) if whole else digester.rows


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loaderd.audit_trainer", description=__doc__)
    parser.add_argument("stream")
    parser.add_argument("--address", required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=120.0)
    parser.add_argument("--whole", action="store_true", help="digest whole batches, not rows")
    return parser


if __name__ == "__main__":
    sys.exit(main())
