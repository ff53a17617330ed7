# Each target does its own set-up: a virtual environment in .venv with pinned packages, made anew when the pins change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check format docs web-check clean

demo: $(INSTALLED)
	$(BIN)/groupwise demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(INSTALLED)
	$(BIN)/python -m groupwise.cli.describe docs/reference

# The scripts of the pages: rules, syntax, unit tests. What needs node or npm is left out where they are missing.
web-check: $(INSTALLED)
	@if [ -d node_modules ] || npm ci --no-audit --no-fund --silent 2>/dev/null; then npm run --silent lint; \
	else echo "ESLint is left out: npm is missing or could not fetch it"; fi
	@if command -v node >/dev/null; then node --test tests/web/; else echo "no node here: unit tests are left out"; fi
	$(BIN)/python -m pytest tests/unit/web

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache node_modules

# torch comes first and pinned: on its own, a newer CUDA build may be chosen, which is gigabytes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
