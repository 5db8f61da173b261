# Everything runs from .venv, which the first target that needs it makes. Set TORCH=cpu for PyTorch's small CPU wheel,
# PYTHON=... for another interpreter (tools/install says more).
BIN := .venv/bin
.PHONY: help install demo tour up test lint bench bench-publisher bench-pipeline chaos mutation lock clean

help:       ## what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12
install: .venv/.everything ## .venv with everything
demo: install ## the incident, live: real model, real Kafka, real ClickHouse engine
	@$(BIN)/kvtrail demo
tour: .venv/.base ## the same incident from a recording: no broker, no torch, seconds
	@$(BIN)/kvtrail tour
up: install ## the local stack until Ctrl-C
	@$(BIN)/kvtrail up
test: install ## everything the tests need, then the tests (ARGS="-k name")
	@$(BIN)/python -m kvtrail.cli.local && $(BIN)/pytest $(ARGS)
lint: install ## ruff, mypy, import rules
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && MYPYPATH=.venv/typing $(BIN)/mypy -p kvtrail && $(BIN)/lint-imports
bench: install ## measured budgets
	@set -e; for each in $(patsubst benchmarks/%.py,%,$(filter-out benchmarks/__% benchmarks/pipeline.py benchmarks/capacity.py,$(wildcard benchmarks/*.py))); do $(BIN)/python -m kvtrail.benchmarks.$$each; done
bench-publisher: install ## what publishing costs an engine
	@$(BIN)/python -m kvtrail.benchmarks.publisher $(ARGS)
bench-pipeline: install ## from publish to queryable finding, against a floor that only stores
	@$(BIN)/python -m kvtrail.benchmarks.pipeline $(ARGS)
chaos: install ## kill broker, store and workers under load, compare with an undisturbed run (ARGS="--seed 2", "--producers")
	@$(BIN)/python -m kvtrail.tests.chaos $(ARGS)
mutation: install ## small faults in the judging core, one at a time: do the tests see them? (ARGS="--sample 500")
	@$(BIN)/python -m kvtrail.tests.mutation $(ARGS)
lock: install ## constraints.txt anew (UPGRADE=--upgrade for newer versions)
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --all-extras --no-header --no-annotate $(UPGRADE) pyproject.toml -o constraints.txt
clean:      ## .venv and caches; the local stack's data stays
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/.everything: pyproject.toml constraints.txt tools/install
	@tools/install
.venv/.base: pyproject.toml constraints.txt tools/install
	@tools/install base
