# Two targets do everything on a fresh machine with Python 3.11 or newer: demo and test.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= auto

.PHONY: demo test test-long bench lint types man schemas clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "waltzctl needs Python 3.11 or newer; name one with: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(STAMP)        ## the main job on generated data: create, append, damage, verify, recover, undo
	$(BIN)/python demo/demo.py

test: $(STAMP)        ## the whole default test run, a few minutes on two cores
	$(BIN)/python -m pytest -n $(JOBS)

test-long: $(STAMP)   ## the thorough variants as well: more crash states, 100,000 mutated inputs, 1,000 live runs
	$(BIN)/python -m pytest -n $(JOBS) --long

bench: $(STAMP)       ## speed, memory and start-up, as ratios measured in one run
	$(BIN)/python benchmarks/scanner.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/startup.py

lint: $(STAMP)        ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)       ## strict type check
	$(BIN)/mypy

man: $(STAMP)         ## manual pages from the command tree and the catalogue of findings
	$(BIN)/python man/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis
