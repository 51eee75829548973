# make train [ARGS="--flag=..."]   set up, then train on this machine
# make test                        set up with the test tools, then lint, types and all tests
# make setup | make setup-dev      only the set-up

PYTHON ?= python3
VENV := .venv
PIP_INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Reaches a mean return of 18 on two cores within half an hour; see sandbox/pong.md.
TRAIN_FLAGS := --level_name=PongNoFrameskip-v4 --agent_name=ShallowConvNetAgent

.PHONY: train test setup setup-dev lint format clean
.DEFAULT_GOAL := train

train: setup
	@$(VENV)/bin/python run_experiment.py $(TRAIN_FLAGS) $(ARGS)

test: setup-dev lint
	@$(VENV)/bin/python -m pytest $(ARGS)

lint: setup-dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

format: setup-dev
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

setup: $(VENV)/.setup
setup-dev: $(VENV)/.setup-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
	    { echo "make: needs Python 3.11 or 3.12; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	    { echo "make: Python has no venv; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.setup: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing packages into $(VENV) (about 3 GB on disk, minutes the first time) ..."
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.setup-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing packages and test tools into $(VENV) (minutes the first time) ..."
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.setup

clean:
	@rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache
