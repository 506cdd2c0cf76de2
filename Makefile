# make demo    train on this machine, lose a node, recover
# make test    check the code, then run every test, on a real SLURM cluster too
# make simulate    simulate 100,000 runs with faults of every kind, on all cores; make simulate SEEDS=1000 fewer
# make mutants     seed faults into the code, and show what finds each
# All do the set-up. make PYTHON=python3.12 uses another interpreter; make TORCH=torch==2.8.0 another PyTorch.

PYTHON ?= python3
TORCH ?= torch==2.13.0
SEEDS ?= 100000
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench format clean system simulate mutants
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' Makefile

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("hpcelastic needs Python 3.10 or newer; make PYTHON=python3.x" if sys.version_info < (3, 10) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without root or Debian the tests on real systems are skipped, with the reason; with CI set that is a failure.
system:
	@tests/install_system.sh || [ -z "$$CI" ]

test: check system
	$(BIN)/python -m pytest -n 2 --dist loadgroup

simulate: $(READY)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

mutants: $(READY)
	$(BIN)/python -m tests.mutants

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/recovery.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
