# make test                     unit, property and contract tests, then integration tests
# make test ARGS="-k retry"     one pytest run with these arguments instead
# make lint                     ruff, mypy and the site of make docs
# make docs                     the documentation as a site, in build/docs; a warning is an error
# make redraw                   the pictures and tables of docs/ anew, from the code
# make bench                    the numbers of docs/benchmarks.md, beside the nearest libraries
# make bench ARGS="keys claim"  some rows of it
# make matrix                   every Celery, Python, redis-py, server, pool and broker; docs/versions.md
# make matrix ARGS="-s redis_py" some of it, without the page; ARGS=-l lists it
# make demo                     the story of examples/quickstart, on real processes
# make coverage                 the tests of make test, measured
# make venv                     only the virtual environment
#
# Another Python or Celery:     make test PYTHON=python3.12 CELERY=5.3 VENV=.venv-5.3

PYTHON ?= python3
VENV ?= .venv
CELERY ?=
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The demo needs a fraction of what the tests do: only what is missing is installed for it.
DEMO_STAMP := $(VENV)/.installed-demo
$(STAMP): EXTRA = dev
$(DEMO_STAMP): EXTRA = demo
# Benchmarks are run with what they need and nothing else.
BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.installed
$(BENCH_STAMP): EXTRA = bench
MATRIX_VENV := .venv-matrix
MATRIX_STAMP := $(MATRIX_VENV)/.installed
$(MATRIX_STAMP): EXTRA = matrix
QUICK := $(wildcard tests/unit tests/properties tests/contract)
# An old Celery admits a newer kombu, which then refuses the redis client that this Celery asks for.
PINS := $(if $(CELERY),'celery==$(CELERY).*' 'kombu==$(CELERY).*')
PYTEST := $(BIN)/python -m pytest -q

.PHONY: venv test lint docs redraw demo coverage clean
.DEFAULT_GOAL := test

venv: $(STAMP)

$(STAMP) $(DEMO_STAMP) $(BENCH_STAMP) $(MATRIX_STAMP): pyproject.toml
	@echo "installing into $(@D)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[$(EXTRA)]' $(PINS)
	@touch $@

test: $(STAMP)
ifneq ($(strip $(ARGS)),)
	$(PYTEST) $(ARGS)
else
	$(PYTEST) -n 2 $(QUICK)
	$(PYTEST) -n 2 --dist worksteal tests/integration
endif

coverage: $(STAMP)
	@rm -f .coverage .coverage.*
	$(PYTEST) -n 2 --cov --cov-report= --cov-fail-under=0 $(QUICK)
	$(PYTEST) -n 2 --dist worksteal --cov --cov-append --cov-report=term tests/integration

lint: $(STAMP) docs
	$(BIN)/ruff check --output-format concise
	$(BIN)/ruff format --check
	$(BIN)/mypy
ifneq ($(wildcard tests/typing),)
	$(BIN)/mypy tests/typing
endif

docs: $(STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env docs build/docs

redraw: $(STAMP)
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/python docs/tables.py

bench: $(BENCH_STAMP)
	@$(BENCH_VENV)/bin/python -m tests.benchmarks $(ARGS)

matrix: $(MATRIX_STAMP)
ifneq ($(strip $(ARGS)),)
	@$(MATRIX_VENV)/bin/nox $(ARGS)
else
	@rm -rf build/matrix
	@$(MATRIX_VENV)/bin/nox; status=$$?; $(MATRIX_VENV)/bin/python -m tests.matrix; exit $$status
endif

demo: $(or $(wildcard $(STAMP)),$(DEMO_STAMP))
	@$(BIN)/python examples/quickstart/demo.py

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(MATRIX_VENV) .nox build dist .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis
