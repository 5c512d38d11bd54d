# `make demo` installs everything and asks the default model a question; `make test` installs everything and tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
SOURCES := $(shell find kernels/cpu -type f 2>/dev/null)

.PHONY: demo test test-all install dev lint clean

# Temperature 0: a model this small can drift into endless repetition when words are drawn at random.
demo: install
	$(BIN)/llmrun run --stats --temp 0 "What is the capital of France?"

install: $(STAMP)
dev: $(DEV)

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(STAMP): pyproject.toml constraints.txt hatch_build.py CMakeLists.txt $(SOURCES) | $(VENV)/bin/python
	@echo "Installing into $(VENV): torch is large, so the first time takes minutes"
	@$(PIP) install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt hatch_build.py CMakeLists.txt $(SOURCES) | $(VENV)/bin/python
	@echo "Installing into $(VENV) with the tools for developers"
	@LLMRUN_REQUIRE_KERNELS=1 $(PIP) install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP) $@

test: dev
	$(BIN)/python -m pytest

test-all: test
	$(BIN)/python -m pytest -m "(slow or network) and not gpu and not long"

lint: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	PYTHONPATH=backends:kernels $(BIN)/lint-imports

clean:
	rm -rf build dist $(VENV) .pytest_cache .ruff_cache kernels/strata_kernels/lib
