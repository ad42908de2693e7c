# Both commands set up everything they need in .venv and can be run again.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/installed
# Processes that test side by side; each needs about 2 GB.
JOBS ?= 2

.PHONY: help demo test check docs golden clean

help: ## show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

demo: $(STAMP) ## optimize ResNet-18 in two minutes and compare it with PyTorch
	$(BIN)/python -m benchmarks.demo

test: $(STAMP) ## pass the tests; the slowest are listed at the end
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --durations 15

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

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache out

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@
