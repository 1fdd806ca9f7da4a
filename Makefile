# Everything runs in .venv, which `make venv` makes. `make help` lists what there is.

PYTHON ?= python3
VENV ?= .venv
export EC_IPC_VENV := $(abspath $(VENV))
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CPP_BUILD := build/cpp
CPP_FILES = $(shell find csrc tests/cpp tests/crash tests/fuzz -name '*.h' -o -name '*.cpp')
IMAGES ?=
BENCH ?=

export PATH := $(EC_IPC_VENV)/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint format cpp interleave crash storm fuzz sanitize mutants unit e2e stateful compat soak bench docs-check models clean gpu-check

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv:  ## make the environment and build the project, as far as needed
	@$(PYTHON) tools/environment.py

demo: venv  ## two engines share embeddings, compared with one engine (IMAGES="a.png b.jpg")
	@$(PY) -m examples.demo.demo $(IMAGES)

test: lint cpp  ## everything that runs without a GPU: lint, C++ and Python tests, real engines
	$(PYTEST) tests --ignore tests/gpu --durations 15

lint: venv  ## style and types of Python and C++
	ruff check .
	ruff format --check .
	mypy --strict ec_ipc
	clang-format --dry-run --Werror $(CPP_FILES)

format: venv  ## put Python and C++ into shape
	ruff check --fix .
	ruff format .
	clang-format -i $(CPP_FILES)

cpp: venv  ## C++ tests
	cmake -S . -B $(CPP_BUILD) -DEC_IPC_PYTHON=OFF -DEC_IPC_TESTS=ON
	cmake --build $(CPP_BUILD) -j $(JOBS)
	ctest --test-dir $(CPP_BUILD) --output-on-failure -j $(JOBS)

$(CPP_BUILD)/tests/%: venv FORCE
	@cmake -S . -B $(CPP_BUILD) -DEC_IPC_PYTHON=OFF -DEC_IPC_TESTS=ON >/dev/null
	@cmake --build $(CPP_BUILD) -j $(JOBS) --target $(notdir $@)
FORCE:

interleave: $(CPP_BUILD)/tests/cpp/interleave  ## every interleaving of the core's steps, with a crash at any
	$<

crash: $(CPP_BUILD)/tests/crash/stepper  ## kill each operation of the core after every single instruction
	$<

KILLS ?= 10000
storm: $(CPP_BUILD)/tests/crash/storm  ## producers and readers killed at random, every byte checked (KILLS=10000)
	$< $(KILLS)

CORRUPTIONS ?= 200000
FUZZERS := $(addprefix $(CPP_BUILD)/tests/fuzz/fuzz_,words steps files live)
fuzz: $(FUZZERS)  ## segments damaged in files, in use and under live readers (CORRUPTIONS=200000)
	@$(PY) -c "import atheris" 2>/dev/null || $(PY) -m pip install --quiet atheris || true
	@$(PY) tests/fuzz/run.py $(CPP_BUILD)/tests/fuzz $(CORRUPTIONS)

sanitize: venv  ## C++ tests and fuzz programs under AddressSanitizer and UBSan, then ThreadSanitizer
	$(PY) tests/cpp/sanitize.py $(JOBS)

mutants: venv  ## faults put into a copy of the core: the C++ suites must notice each of them
	$(PY) tests/mutants/mutants.py --jobs $(JOBS)

unit: venv  ## Python tests that start no engine
	$(PYTEST) tests --ignore tests/gpu --ignore tests/e2e

e2e: venv  ## tests with real vLLM engines
	$(PYTEST) tests/e2e

stateful: venv  ## the store against a dictionary model, at random
	$(PYTEST) tests/stateful

soak: venv  ## 2,000 requests from 16 clients over a small arena (SOAK="--requests 500")
	@$(PY) tests/soak $(SOAK)

compat: venv  ## vLLM's interface, version by version, against what the connector implements
	@$(PY) tools/compat

docs-check: venv  ## run the documented commands; check deploy files and the package
	$(PYTEST) tests/docs

bench: venv  ## what hand-over costs, next to what else does it (BENCH=--full: more rounds)
	@$(PY) -c "import matplotlib" 2>/dev/null || $(PY) -m pip install --quiet matplotlib
	@for name in transfer directory reclaim hooks epd; do $(PY) -m benchmarks.bench_$$name $(BENCH) || exit 1; done
	@$(PY) -m benchmarks.report

gpu-check:  ## on a machine with an NVIDIA GPU, without network: tests and benchmarks on it (OUT=folder)
	@$(PYTHON) tools/gpu_check.py

models: venv  ## the tiny models, in .cache/models
	$(PY) -m examples.demo.tiny_models

clean:  ## remove what was built; .venv and the downloads stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f ec_ipc/_core*.so
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
