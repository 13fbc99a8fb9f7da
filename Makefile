# Two targets do everything on a fresh machine with Python 3.11 or newer: demo and test.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= auto
# The tests start thousands of processes: without bytecode each of them would compile the whole program anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-long mutants interop bench lint types man schemas clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "waltzctl needs Python 3.11 or newer; name one with: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --config-settings editable_mode=compat --editable '.[dev]'
	@touch $@

demo: $(STAMP)        ## the main job on generated data: create, append, damage, verify, recover, undo, serve, back up, a cluster, a pipeline
	$(BIN)/python demo/demo.py

test: $(STAMP)        ## the whole default test run, a few minutes on two cores
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test-long: $(STAMP)   ## the thorough variants as well: more crash states, mutated inputs, live runs and kills
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --long

# Every mutant takes hours.  A sample: make mutants SAMPLE=50 SEED=3 ROOMS="repair storage"
SAMPLE ?=
SEED   ?= 1
ROOMS  ?=
mutants: $(STAMP)     ## how many small changes of the code its tests notice, room by room; hours, or a sample: SAMPLE=50
	$(BIN)/python -m tests.mutation.measure --seed $(SEED) $(if $(SAMPLE),--sample $(SAMPLE)) $(ROOMS:%=--room %)

interop: $(STAMP)     ## the released Waltz and ours, mixed, on the loopback; takes the release from WALTZ_CLASSPATH
ifeq ($(strip $(WALTZ_CLASSPATH)),)
	@echo "make interop: skipped, WALTZ_CLASSPATH is not set."
	@echo "It is the class path of a built Waltz 0.13.2, which no registry has: compile the public source (tag 0.13.2) of its"
	@echo "modules common, client, storage, server and tools with a JDK 17 (--release 8), beside this project and not in it. Put"
	@echo "on the path: those classes, the resources of server and storage, the libraries that its build files name (zookeeper"
	@echo "comes with zktools), a file waltz/waltz-version.properties with the line version=0.13.2, and bcpkix-jdk15on, which"
	@echo "netty needs on Java 17 to make a self-signed certificate. benchmarks/node.py also wants its drivers there."
else
	$(BIN)/python -m pytest tests/interop
endif

bench: $(STAMP)       ## speed, memory and start-up, as ratios measured in one run; the node beside the released one if it is there
	$(BIN)/python benchmarks/scanner.py
	$(BIN)/python benchmarks/verify.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/open.py
	$(BIN)/python benchmarks/flush.py
	$(BIN)/python benchmarks/pages.py --quick
	$(BIN)/python benchmarks/spark.py --quick
	$(BIN)/python benchmarks/node.py --quick $(if $(strip $(WALTZ_CLASSPATH)),,--only ours --client ours)

lint: $(STAMP)        ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)       ## strict type check
	$(BIN)/mypy

man: $(STAMP)         ## manual pages from the command tree and the catalogue of findings
	$(BIN)/python man/generate.py

clean:
	rm -rf $(VENV) build dist *.egg-info demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis
