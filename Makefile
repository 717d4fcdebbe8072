# Two commands for newcomers: `make bench` (the main job on the embedded server) and `make test` (the plugin's own tests).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: bench test test-all lint format clean

bench: $(VENV)/.installed
	$(BIN)/pytest -m "bench or coding" --ddtree-budget 8 --ddtree-problem-limit 30 $(ARGS)

test: $(VENV)/.installed
	$(BIN)/pytest tests -m "not slow and not soak and not torch" $(ARGS)

test-all: $(VENV)/.installed
	$(BIN)/pytest tests -m "not torch" $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Pinned versions first, then the project itself without touching them.
$(VENV)/.installed: pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks .ddtree
