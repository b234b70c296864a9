# chanas: `make demo` shows all of it. PYTHON picks the interpreter that the environment in .venv is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOG := $(VENV)/install.log
START := $(shell date +%s)
# Two processes, for two cores; the tests of a file stay together and share what they compile.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# AVX2 alone, AVX-512 without bfloat16, a Zen 4, and a Xeon with AMX (tests/processors.py).
PROCESSORS := haswell ice-lake zen4 virtual-xeon
# Worker processes start twice as fast where Python keeps what it has compiled of TVM and PyTorch.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test slow processors coverage lint types clean

help:  ## show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv and install chanas into it, when something changed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "chanas needs Python 3.11 or later; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "installing into $(VENV) (minutes the first time)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@{ $(BIN)/python -m pip install -q -c constraints.txt uv && \
		$(BIN)/uv pip install --python $(BIN)/python -c constraints.txt -e '.[dev]' || \
		$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'; } > $(LOG) 2>&1 || \
		{ cat $(LOG) >&2; echo "the installation failed; the lines above are in $(LOG)" >&2; exit 1; }
	@touch $@

demo: setup  ## train, tune, search and classify handwritten digits, in at most ten minutes
	@$(BIN)/chanas demo
	@s=$$(($$(date +%s) - $(START))); \
		printf '\nmake demo took %d:%02d, installation included\n' $$((s / 60)) $$((s % 60))

test: setup  ## run the tests that two CPU cores can run
	@$(BIN)/python -m pytest -q $(PARALLEL) --durations=10

slow: setup  ## run the tests that take minutes
	@$(BIN)/python -m pytest -q $(PARALLEL) -m 'slow and not cuda and not rpc and not qemu and not browser' --durations=10

processors: setup  ## run the tests whose result may depend on the processor, as on four other processors
	@for processor in $(PROCESSORS); do \
		$(BIN)/python -m pytest -q $(PARALLEL) --processor $$processor \
			tests/core tests/devices tests/commands tests/benchmarks || exit 1; done

coverage: setup  ## run the tests and print which lines and branches of the package they reach
	@$(BIN)/python -m pytest -q $(PARALLEL) --cov --cov-report=term:skip-covered

lint: setup  ## check style, formatting and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: setup  ## check the types of the package and of its benchmarks
	@$(BIN)/mypy chanas benchmarks

clean:  ## remove the environment, caches and build products; runs/ stays
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* .import_linter_cache
	@find chanas tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
