# make setup | quickstart | test | test-docker | lint | bench
# PYTHON picks the interpreter, CORL_TORCH_INDEX where a CPU build of torch is found when pip's find-links has none.
VENV ?= .venv
PYTHON ?= python3
BIN = $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup quickstart test test-docker lint format bench clean

setup:
	@PYTHON=$(PYTHON) scripts/setup.sh $(VENV)

quickstart: setup
	$(BIN)/corl run examples/arithmetic/cohort.yaml

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy corl services/corl_judge trainer/corl_trainer
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -q

# Both CPU images and the whole stack, with a judge scaled and containers killed. Needs a Docker engine 25 or newer.
test-docker: setup
	$(BIN)/python -m pytest -m docker -q tests/docker

bench: setup
	@for file in benchmarks/*.py; do echo "== $(BIN)/python $$file"; $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
