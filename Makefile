# Everything a fresh machine needs is set up by the first target that is run: see `make help`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
KERNELS := $(VENV)/.kernels
# more than two cores' worth: live tests mostly wait
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
# tests start hundreds of processes: where nothing is kept, each would compile what it imports
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-all chaos simulate fuzz check audit format docs bench clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Ramify needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
	            "Name another one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once, two minutes or so)"
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module: install it (Debian: apt install python3-venv)."; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev,bench]'
	@touch $@

demo: $(READY) ## The whole story: plan a shop's events over 41 cloud regions, run them live, re-plan
	@mkdir -p build
	@$(BIN)/ramify demo --out build/demo-plan.json

# compiled by one process before workers start, which would all compile the same
$(KERNELS): $(READY) tests/support/kernels.py $(shell grep -rlE '^@(compiled|inlined)' src --include='*.py')
	@echo "Compiling kernels (once, a minute or two)"
	@$(BIN)/python tests/support/kernels.py
	@touch $@

test: $(KERNELS) ## Run the tests that CI runs
	@$(PYTEST)

test-quick: $(KERNELS) ## Run what needs no Spark and no server: at every change
	@$(PYTEST) --hypothesis-profile quick -m 'not (spark or live or command or long)'

test-all: $(KERNELS) ## Run the tests with their long forms
	@$(PYTEST) --hypothesis-profile long -m 'long or not long'

# a run at least; each takes a minute or two
MINUTES ?= 10
SEED ?=
chaos: $(KERNELS) ## Faults on real processes for MINUTES=10, from SEED=..., and the verdict on what clients saw
	@PYTHONPATH=tests/support $(BIN)/python tests/support/chaos.py --minutes $(MINUTES) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results)

SEEDS ?= 200
FROM ?= 0
simulate: $(KERNELS) ## The overlay on simulated servers and time: SEEDS=200 FROM=0, or SEED=7 with its log
	@PYTHONPATH=tests/support $(BIN)/python -m simulation \
	  $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(FROM))

check: $(READY) ## Lint, format, types, layers, dependencies
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/audit.py

audit: $(READY) ## Hold dependencies against the advisories that the package index has today
	@$(BIN)/python .ci/audit.py --live

format: $(READY) ## Format the code and mend what the linter can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(READY) ## Write docs/api.md from the docstrings, docs/reliability.md, and the roles in docs/security.md from the accounts
	@$(BIN)/python docs/generate_api.py
	@$(BIN)/python docs/generate_reliability.py
	@$(BIN)/python tests/support/role_matrix.py

FUZZ_MINUTES ?= 10
fuzz: $(KERNELS) ## Changed inputs for every parser for FUZZ_MINUTES=10, guided by coverage if atheris is installed
	@PYTHONPATH=tests/support $(BIN)/python tests/support/fuzz.py --minutes $(FUZZ_MINUTES) $(if $(SEED),--seed $(SEED))

bench: $(READY) ## Run every benchmark in its quick form
	@for b in benchmarks/*.py; do echo "== $$b"; $(BIN)/python $$b --quick || exit 1; done

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
