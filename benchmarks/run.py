"""Every benchmark in one run: ``python -m benchmarks.run [--quick] [NAME ...]``.

Writes the tables to stdout and to .bench/results.md, every number to .bench/results.json (both
below .bench/quick if quick).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from benchmarks import drifting, first_batch, floats, latency, photographs
from benchmarks.results import QUICK, Section, Settings, machine
from benchmarks.sources import RESULTS

BENCHMARKS: dict[str, Callable[[Settings], Section]] = {
    "photographs": photographs.measure,
    "floats": floats.measure,
    "latency": latency.measure,
    "first_batch": first_batch.measure,
    "drifting": drifting.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmarks named (all where none is); 1 where a target is missed, but not if quick."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="a minute in all, to see that it runs")
    options = parser.parse_args(sys.argv[1:] if arguments is None else [*arguments, *sys.argv[1:]])
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    settings = QUICK if options.quick else Settings()
    facts = machine()
    sections = []
    for name in options.names or BENCHMARKS:
        print(f"{name} ...", flush=True)
        sections.append(BENCHMARKS[name](settings))
    _write(sections, facts, settings, options)
    missed = any(not target.is_met for section in sections for target in section.targets)
    return 1 if missed and not options.quick else 0


def _write(
    sections: list[Section], facts: dict[str, str], settings: Settings, options: argparse.Namespace
) -> None:
    quick: bool = options.quick
    name = "-".join(["results", *options.names])
    folder = RESULTS / "quick" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    how = "QUICK run: these numbers say nothing" if quick else (
        f"medians of {settings.repetitions} interleaved repetitions of {settings.window_s:g} s, "
        f"in brackets the least and the greatest"
    )  # fmt: skip
    head = "; ".join(f"{key} {value}" for key, value in facts.items())
    text = "\n".join([f"{how}.", "", f"Machine: {head}.", "",
                      *(section.markdown() for section in sections)])  # fmt: skip
    print(text)
    (folder / f"{name}.md").write_text(text)
    document = {"machine": facts, "quick": quick,
                "sections": [section.document() for section in sections]}  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    sys.exit(main())
