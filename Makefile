# Everything a fresh machine needs is set up by the first target that is run: see `make help`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

test: $(READY) ## Run the tests
	@$(BIN)/python -m pytest -n $(WORKERS)

check: $(READY) ## Lint, format, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## Format the code and mend what the linter can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## Run every benchmark in its quick form
	@for b in benchmarks/*.py; do echo "== $$b"; $(BIN)/python $$b --quick || exit 1; done

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
