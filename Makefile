# Each target does its own set-up: a virtual environment in .venv with pinned packages, made anew when the pins change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-web test-kernels test-extras test-versions test-oldest test-newest fuzz lint check format docs clean

demo: $(INSTALLED)
	$(BIN)/groupwise demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not browser"

# The random tests with new examples, for about an hour; `make test` tries the same few each time.
FUZZ_FACTOR ?= 300
fuzz: $(INSTALLED)
	HYPOTHESIS_PROFILE=explore FUZZ_FACTOR=$(FUZZ_FACTOR) $(BIN)/python -m pytest tests/fuzz -n 2 --dist worksteal --timeout 0

check: lint test test-web

# Format, style and types of the Python; rules, syntax and unit tests of the scripts, where node and npm are there.
lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@if [ -d node_modules ] || npm ci --no-audit --no-fund --silent 2>/dev/null; then npm run --silent lint; \
	else echo "ESLint is skipped: npm is missing or could not fetch it"; fi
	@if command -v node >/dev/null; then node --test tests/web/; else echo "no node: tests of the scripts are skipped"; fi

# The pages in Chromium, where it is installed.
test-web: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m browser

# The Triton kernels on a CPU, in Triton's interpreter. Triton takes a gigabyte, and nothing else needs it there.
test-kernels: $(INSTALLED)
	@$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[kernels]'
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/interpreted

# What the optional packages add: Ray, Optuna, bitsandbytes and W&B, in a virtual environment of its own. (trackio and
# the pinned huggingface_hub exclude each other.)
test-extras: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-extras
	.venv-extras/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-extras/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,extras]'
	.venv-extras/bin/python -m pytest -n 2 --dist worksteal -m extras

# What depends on transformers, with the oldest and with the newest packages in pyproject's ranges, each in a virtual
# environment that is made anew. torch is the pinned one.
test-versions: test-oldest test-newest

bounds_oldest = sed -n '/^dependencies/,/^dev/p' pyproject.toml | grep -oE '"[A-Za-z-]+>=[0-9.]+' | tr -d '"' | sed 's/>=/==/'
bounds_newest = true
test-oldest test-newest: test-%:
	rm -rf .venv-$*
	$(PYTHON) -m venv .venv-$*
	{ $(bounds_$*) | grep -v '^torch='; grep '^torch=' constraints.txt; } > .venv-$*/constraints.txt
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --constraint .venv-$*/constraints.txt torch
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --constraint .venv-$*/constraints.txt --editable '.[dev]'
	.venv-$*/bin/pip list --disable-pip-version-check | grep -E '^(torch|transformers|tokenizers|peft|numpy) '
	.venv-$*/bin/python -m pytest -n 2 --dist worksteal tests/unit/models tests/unit/engines tests/unit/training tests/golden

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(INSTALLED)
	$(BIN)/python -m groupwise.cli.describe docs/reference

clean:
	rm -rf $(VENV) .venv-extras .venv-oldest .venv-newest build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache node_modules

# torch comes first and pinned: on its own, a newer CUDA build may be chosen, which is gigabytes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
