# Two commands do all set-up on a machine that has only Python 3.11 and make:
#   make demo     installs and compares the methods on the embedded example
#   make test     installs and runs every check
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per test worker: more threads than cores only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: install demo test test-fast lint pages docs browser reproduce-smoke clean

install: $(STAMP)

# Pins without hashes: pip's hash mode wants one for everything, and an editable package and a torch wheel of the machine's own have none.
# One pip call with pins: a looser range of torch would pull gigabytes. The last line fills the cache of compiled code.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,silos]"
	$(BIN)/python -m feduca.cli.warm
	touch $(STAMP)

demo: install
	$(BIN)/feduca compare

test: install lint browser
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto --dist worksteal

test-fast: install
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto -m "not slow"

# Every table and figure of the paper in its small version (`make test` runs this, too).
reproduce-smoke: install
	$(ONE_THREAD) $(BIN)/python -m pytest -n auto tests/integration/test_reproduce.py

# Pages and figures that are written from results/; tests compare them with what is committed.
pages: install
	$(BIN)/python -m paper.figures
	$(BIN)/python -m paper.page
	$(BIN)/python -m paper.offers_page
	$(BIN)/python -m paper.incentives_page
	$(BIN)/python -m paper.real_page
	$(BIN)/python -m paper.readings_page
	$(BIN)/python -m paper.findings_page
	$(BIN)/python -m paper.headline
	$(BIN)/python docs/defaults.py

# The documentation, warnings as errors, into build/docs (`make test` builds it, too).
docs: install
	$(BIN)/python -m sphinx -W --keep-going -b html docs build/docs

# Browser tests want a Chromium: any that is there, else Debian's where it may be installed; without one they say so and are skipped.
browser:
	@for name in "$$FEDUCA_CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable chrome microsoft-edge; do \
	  [ -n "$$name" ] && command -v "$$name" >/dev/null && exit 0; done; \
	ls $$HOME/.cache/ms-playwright/chromium-*/chrome-linux*/chrome >/dev/null 2>&1 && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  (apt-get install -y -qq chromium || (apt-get update -qq && apt-get install -y -qq chromium)) >/dev/null 2>&1 && exit 0; fi; \
	echo "no Chromium found: the browser tests will be skipped; apt-get install chromium, or set FEDUCA_CHROMIUM" >&2

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .hypothesis .ruff_cache .import_linter_cache
