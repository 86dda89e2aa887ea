# One command per chore. Each sets up .venv by itself, and again when pyproject.toml or constraints.txt has changed.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help demo test check bench clean

help:  ## list these commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## */  make \1\t/'

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[train,dev]'
	@touch $@

demo: $(STAMP)  ## train on 1, 2 and 3 workers and on a cluster that is hurt on the way; compare the digests
	$(BIN)/python -m examples.demo
	$(BIN)/python -m examples.cluster_demo

test: $(STAMP)  ## run the tests; PYTEST="-m slow" adds arguments
	@$(BIN)/python -m tests.packages
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(PYTEST)

check: $(STAMP)  ## formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)  ## list the benchmarks; each is run alone
	@for file in benchmarks/[a-z]*.py; do echo "$(BIN)/python $$file"; done

clean:  ## remove the environment, caches and builds (not the runs)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
