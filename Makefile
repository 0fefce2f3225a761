# Two commands on a fresh machine: `make run`, `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: run test verify check format clean

$(VENV)/.ready: requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.lock
	touch $@

run: $(VENV)/.ready  ## the main job: the bill, a real training run, estimated against actual
	$(BIN)/python launch.py

test: $(VENV)/.ready  ## the whole suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

verify: $(VENV)/.ready  ## outputs of the newest run, or of RUN=runs/...: there, sound, in agreement
	PYTHON=$(BIN)/python scripts/verify.sh $(RUN)

check: $(VENV)/.ready  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
