# loaderd: `make demo` shows the main job, `make test` proves it. Both set up what they need.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench simulate chaos test-gpu clean
PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 10000
JOBS ?= 4
SEED ?=
SECONDS ?= 120
STAMP := .venv/.installed

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## make .venv and install loaderd with its server and development extras

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[server,demo,dev]"
	@touch $@

demo: setup  ## serve photographs to two trainers from one stream, and show what was saved
	$(BIN)/python -m examples.quickstart.demo

test: setup  ## run every test (simulation of 1,000 seeds included), JOBS files at a time
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile

check: setup  ## format, lint, types, direction of imports, unit tests: what CI holds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit

bench: setup  ## measure against the peers in one run; writes .bench/results.md
	$(BIN)/python -m benchmarks.run

simulate: setup  ## SEEDS=n random schedules of the core, or SEED=s to replay one
	$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

chaos: setup  ## SECONDS of kills and stops on the real daemon while trainers check every batch; SEED=s again
	$(BIN)/python -m tests.chaos.run --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

test-gpu: setup  ## run tests/gpu; says so in one line where there is no device
	@if $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then \
		$(BIN)/python -m pytest -q tests/gpu; \
	else echo "no CUDA device here: tests/gpu not run"; fi

clean:  ## remove what the other targets made
	rm -rf .venv .demo .bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
