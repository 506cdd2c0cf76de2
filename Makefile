# make demo        train on this machine, kill a node, recover
# make test        check the code and run the tests of each change, on a real SLURM cluster too: minutes
# make nightly     a third of all other tests and mutants in turn, and a part of the checks below: at most 90 minutes
# make weekly      all checks below, in parts; a repeated call skips what has passed; make weekly PARTS="busy tests"
# make simulate    simulate 100,000 runs with faults of every kind, on all cores; make simulate SEEDS=1000 for fewer
# make exhaustive  search every interleaving of three nodes, deeper than the tests do
# make mutants     insert bugs into the code, one at a time, and show which check finds each
# make filesystems  run a shared counter on every filesystem, and write the table in docs/filesystems.md
# make storm       random faults of every kind on a run on a SLURM cluster; make storm MINUTES=1 SEED=7 SHAPE=pool ELASTIC=1
# make scenarios   measure each event of a run under SLURM, and write the table in docs/slurm.md
# make matrix      the SLURM tests, the contract tests and the demo with the SLURM and the Python of Debian 12, 13 and
#                  unstable; make matrix SUITES=trixie ONLY=tests/slurm/test_preemption.py; SUITES=python3.12, torch2.10
# make gpu         all that needs a GPU: the tests with NCCL, and the part of docs/performance.md; one GPU, ten minutes
# make site        the documentation as a site, in build/site
# make pictures    the pictures in README.md and docs/, from a real run, and docs/torch_elastic_api.md; on an idle
#                  machine
# make bench       compare with torchrun and others, and write docs/performance.md; QUICK=1 for minutes
# Most targets install the environment first. make PYTHON=python3.12 uses another interpreter; make TORCH=torch==2.11.0
# another PyTorch.

PYTHON ?= python3
TORCH ?= torch==2.13.0
SEEDS ?= 100000
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Without byte code on disk, each of the thousands of processes of the tests would compile hpcelastic again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check bench format clean system simulate exhaustive mutants filesystems storm scenarios nightly weekly gpu pictures site
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' Makefile

$(READY): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): not found; install Python 3.10 or newer, or make PYTHON=python3.x"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("hpcelastic needs Python 3.10 or newer; make PYTHON=python3.x" if sys.version_info < (3, 10) else 0)'
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	elif command -v uv >/dev/null; then uv venv --quiet --allow-existing --seed --python "$$(command -v $(PYTHON))" $(VENV); \
	elif command -v virtualenv >/dev/null; then virtualenv --quiet --python "$$(command -v $(PYTHON))" $(VENV); \
	else echo "$(PYTHON) has no module venv; on Debian or Ubuntu, as root: apt-get install python3-venv"; exit 1; fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Without root or Debian the tests on real systems are skipped with the reason. If CI is set, this is a failure.
weekly filesystems: PACKAGES = --weekly
system:
	@tests/install_system.sh $(PACKAGES) || [ -z "$$CI" ]

test: check system
	$(BIN)/python -m pytest -n 4 --dist loadgroup

simulate: $(READY)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

exhaustive: $(READY)
	$(BIN)/python -m tests.protocol.exhaustive --nodes 3 --min 2 --depth 30 --faults crash=1 fail=1 expire=1 --lag \
		--limit 1000000

mutants: $(READY)
	$(BIN)/python -m tests.mutants

filesystems: $(READY) system
	$(BIN)/python -m tests.filesystems.table

storm: $(READY) system
	$(BIN)/python -m tests.slurm.scenario.storm --minutes $(or $(MINUTES),20) $(if $(SEED),--seed $(SEED)) $(if $(SHAPE),--shape $(SHAPE)) $(if $(ELASTIC),--elastic)

scenarios: $(READY) system
	$(BIN)/python -m tests.slurm.scenario.table

nightly weekly: $(READY) system
	$(BIN)/python -m tests.periodic $@ $(PARTS)

# No environment is installed here: each suite has its own. MATRIX is their directory.
.PHONY: matrix
matrix:
	$(PYTHON) -m tests.matrix $(if $(MATRIX),--directory $(MATRIX)) --torch "$(TORCH)" $(if $(BUILD),--build) $(SUITES) $(if $(ONLY),--only $(ONLY))

# No environment is installed here: a machine with a GPU often has torch, and no network.
GPU_PYTHON ?= $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))

gpu:
	PYTHONPATH=$(CURDIR):$$PYTHONPATH $(GPU_PYTHON) -m pytest -m gpu tests/gpu
	PYTHONPATH=$(CURDIR):$$PYTHONPATH $(GPU_PYTHON) -m benchmarks gpu

pictures: $(READY)
	$(BIN)/python docs/make_diagram.py
	$(BIN)/python docs/make_elastic_api.py
	$(BIN)/python docs/make_picture.py
	$(BIN)/python docs/make_reference.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[bench]"
	@touch $@

bench: $(VENV)/.bench system
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(ONLY)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
