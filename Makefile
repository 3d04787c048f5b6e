# Two commands do all set-up on a machine that has only Python 3.11 and make:
#   make demo     installs and compares the methods on the embedded example
#   make test     installs and runs every check
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-fast lint clean

install: $(STAMP)

# One pip call with pins: a looser range of torch would pull gigabytes. The last line compiles the solver into its cache.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/python -m feduca.program.warm
	touch $(STAMP)

demo: install
	$(BIN)/feduca compare

test: install lint
	$(BIN)/python -m pytest -n auto

test-fast: install
	$(BIN)/python -m pytest -n auto -m "not slow"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .hypothesis .ruff_cache .import_linter_cache
