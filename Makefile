# Everything a developer types. `make run` and `make test` work on a fresh machine with Python >= 3.11.
PYTHON ?= python3
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 2)
MATRIX ?= smoke
TORCH ?= 2.13.0
BASE ?= main
INPUTS ?= 20000
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help install run test quick check types layers documents prose collected test-gpu test-torch fuzz bench docs lock clean

help: ## list what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

run: $(RUN) ## install what a run needs, run the smoke matrix, print the verdict and the report's path
	$(BIN)/qualify run $(MATRIX) $(ARGS)

test: check ## install, check, and run all tests that need no GPU, in two processes more than there are cores (some wait)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# All lines are expanded before the first one runs, so the tests end so long after the start. The line with MAKE is one
# of its own, because `make --dry-run` runs lines that hold that word.
quick: $(DEV) ## within a minute: check, and run the tests nearest to what changed since this branch left BASE
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --jobs $(WORKERS) types layers documents prose
	@nearby=$$($(BIN)/python tests/nearby.py --base $(BASE)) && \
	if [ -n "$$nearby" ]; then \
	  $(BIN)/pytest -q -n 2 --dist load --maxschedchunk 1 --until $(shell expr $$(date +%s) + 45) $$nearby $(ARGS); \
	else echo "No test can reach what changed since $(BASE)."; fi

check: $(DEV) ## lint, format, types, layers, generated documents and their links, spelling, prose, imports of tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --jobs $(WORKERS) types layers documents prose collected

types: $(DEV)
	$(BIN)/mypy

layers: $(DEV)
	$(BIN)/lint-imports --no-cache

documents: $(DEV)
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

prose: $(DEV)
	$(BIN)/codespell
	$(BIN)/python docs/prose.py

# Every test can be imported. The processes of `make test` then find all assertions rewritten: each would do that anew.
collected: $(DEV)
	@$(BIN)/pytest --collect-only -qqq >$(VENV)/.collected || { cat $(VENV)/.collected; exit 1; }

test-gpu: $(DEV) ## the tests that run CUDA kernels
	$(BIN)/pytest --gpu tests/gpu $(ARGS)

# The lock has a torch of its own, and an older one wants an older setuptools.
test-torch: $(BIN)/python ## the tests of what imports torch, with the release that TORCH names: the oldest allowed is TORCH=2.11.0
	$(BIN)/python -m venv $(VENV)/torch-$(TORCH)
	grep -vE '^(torch|setuptools)==' constraints.txt >$(VENV)/torch-$(TORCH)/constraints.txt
	$(VENV)/torch-$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c $(VENV)/torch-$(TORCH)/constraints.txt torch==$(TORCH) -e '.[run,dev]'
	$(VENV)/torch-$(TORCH)/bin/pytest -n $(WORKERS) tests/run tests/hosts tests/selftest tests/test_forking.py $(ARGS)

# Before them, every test of a property with inputs that no run before has drawn.
fuzz: $(DEV) ## INPUTS damaged inputs (20,000), each in a process with 1 GB and 10 s: no crash, no hang, no internal error
	$(BIN)/pytest -q -m hypothesis --hypothesis-profile default -n $(WORKERS) $(ARGS)
	$(BIN)/pytest -q tests/fuzz --inputs $(INPUTS) -n $(WORKERS) --maxschedchunk 1 $(ARGS)

bench: $(DEV) ## measure what docs/benchmarks.md quotes
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

docs: $(DEV) ## write the generated parts of docs/ again, check every link, and build the site into out/docs
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: ## resolve all dependencies again around the torch that TORCH names, and write constraints.txt
	rm -rf $(VENV)/lock
	$(MAKE) --no-print-directory $(BIN)/python
	$(BIN)/python -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet torch==$(TORCH) -e '.[run,dev]'
	$(VENV)/lock/bin/python docs/lock.py
	rm -rf $(VENV)/lock

install: $(DEV) ## install everything into .venv

clean: ## remove .venv and what tests and runs leave behind, but no evidence
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "qualify needs Python 3.11 or newer, and $(PYTHON) is: $$($(PYTHON) --version 2>&1)." \
	    "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }

$(RUN): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[run,models]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[run,dev]'
	@touch $(RUN) $@
