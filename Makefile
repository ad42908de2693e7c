# Both commands set up everything they need in .venv and can be run again.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/installed
# Bytecode for the many processes that start, where the environment asks Python not to write it.
BYTECODE := $(BIN)/python -m compileall -q felixlike
# Processes that test side by side; each needs about 2 GB.
JOBS ?= 2
# What test-versions tests: the Python, the packages in pip's words, and the tests that depend on them most.
OTHER_PYTHON ?= python3.14
OTHER_PACKAGES ?= torch egglog
OTHER_BIN := .venv-versions/bin
OTHER_TESTS ?= tests/_util/test_supported.py tests/_util/test_torch_modes.py tests/dynamo/test_weights.py \
	tests/dynamo/test_output_views.py tests/frontend/test_refusals.py tests/smooth/test_saturate.py

.PHONY: help demo test test-versions check docs golden clean

help: ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 15

demo: $(STAMP) ## optimize ResNet-18 in two minutes and compare it with PyTorch
	@$(BYTECODE)
	$(BIN)/python -m benchmarks.demo

test: $(STAMP) ## pass the tests; the slowest are listed at the end
	@$(BYTECODE)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --durations 15

test-versions: ## pass a part of the tests with the newest packages: make test-versions OTHER_PYTHON=python3.14
	test -x $(OTHER_BIN)/python || $(OTHER_PYTHON) -m venv .venv-versions
	$(OTHER_BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager $(OTHER_PACKAGES) --editable '.[dev]'
	$(OTHER_BIN)/python -m pytest $(OTHER_TESTS)

check: $(STAMP) ## lint, format, layers, dead names, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/mypy

docs: $(STAMP) ## build the pages as a site, in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

golden: $(STAMP) ## rewrite the golden texts; read the difference before you commit it
	$(BIN)/python -m pytest tests --update-golden

clean: ## remove the virtual environments and caches
	rm -rf .venv .venv-versions .mypy_cache .ruff_cache .pytest_cache out

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
