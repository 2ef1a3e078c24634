# `make demo` trains the default model; `make test` tests everything once, except what takes whole runs or whole
# pages, `make test-more` has these and the tests' further cases, and `make test-long` their long forms; `make fuzz` tries
# strange inputs for SECONDS; `make test-compilers` compiles for TPUs and GPUs, and `make test-cuda13` for GPUs with jax
# 0.11, in environments of their own. `make docs` builds the documentation into site/. All others make .venv first.
PYTHON ?= python3
BIN := .venv/bin
export TF_CPP_MIN_LOG_LEVEL ?= 3

SECONDS ?= 600

.PHONY: demo test test-more test-long test-compilers test-cuda13 fuzz lint docs archive clean

demo: .venv/installed
	$(BIN)/python -m train.main

test: .venv/installed-test
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not more and not long"

test-more: .venv/installed-test
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "more and not long"

test-long: .venv/installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=false $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m long

fuzz: .venv/installed-test
	FUZZ_SECONDS=$(SECONDS) FUZZ_RANDOM=1 $(BIN)/python -m pytest -q tests/fuzz

test-compilers: .venv-compilers/installed
	.venv-compilers/bin/python -m pytest -q -p no:xdist tests/compilers

test-cuda13: .venv-cuda13/installed
	.venv-cuda13/bin/python -m pytest -q -p no:xdist tests/compilers

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/installed: requirements.txt constraints.txt pyproject.toml | .venv/bin/python
	@echo "Installing JAX and the other packages into .venv, once; this takes some minutes and prints nothing."
	$(BIN)/python -m pip install -q -r requirements.txt -c constraints.txt
	$(BIN)/python -m pip install -q --no-deps -e .
	touch $@

.venv/installed-docs: requirements-docs.txt constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q -r requirements-docs.txt -c constraints.txt
	touch $@

.venv/installed-test: requirements-test.txt requirements-docs.txt .venv/installed
	$(BIN)/python -m pip install -q -r requirements-test.txt -c constraints.txt
	touch $@

archive:
	git archive --prefix=attention-bench/ --output=attention-bench.zip HEAD

.venv-compilers/installed: requirements-tpu.txt requirements-cuda12.txt constraints.txt
	$(PYTHON) -m venv .venv-compilers
	.venv-compilers/bin/python -m pip install -q -r requirements-tpu.txt -c constraints.txt
	.venv-compilers/bin/python -m pip install -q --no-deps -r requirements-cuda12.txt
	touch $@

.venv-cuda13/installed: requirements-test.txt requirements-cuda13.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12) and "Python 3.12 or newer is needed: make test-cuda13 PYTHON=python3.12")'
	$(PYTHON) -m venv .venv-cuda13
	.venv-cuda13/bin/python -m pip install -q -r requirements-test.txt
	.venv-cuda13/bin/python -m pip install -q --no-deps -r requirements-cuda13.txt
	touch $@

clean:
	rm -rf .venv .venv-compilers .venv-cuda13 site
