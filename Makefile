# make train [ARGS="--flag=..."]   set up, then train on this machine
# make test                        set up with Horovod and the test tools, then lint, types, all tests
# make setup | make setup-dev      only the set-up

PYTHON ?= python3
VENV := .venv
PIP_INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

HOROVOD_BUILD := HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1
# For mpirun, where there is one. pip keeps what it has built, but not for which of the two.
ifneq ($(shell command -v mpicxx),)
HOROVOD_BUILD += HOROVOD_WITH_MPI=1
HOROVOD_PIP := --no-cache-dir
else
HOROVOD_BUILD += HOROVOD_WITHOUT_MPI=1
endif

# Two cores have few frames: many small updates, and two of each batch; see sandbox/pong.md.
TRAIN_FLAGS := --level_name=PongNoFrameskip-v4 --agent_name=ShallowConvNetAgent \
    --batch_size=8 --envs_per_actor=16 --queue_capacity=16 --updates_per_batch=2 \
    --learning_rate=0.00085 --epsilon=0.00001 \
    --total_environment_frames=12000000

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

# Horovod has no wheel: it is compiled against the TensorFlow that is installed, so that comes first.
$(VENV)/.setup-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@command -v cmake >/dev/null && command -v g++ >/dev/null || \
	    { echo "make: Horovod needs a compiler; on Debian: apt-get install cmake g++" >&2; exit 1; }
	@echo "Installing packages, test tools and Horovod into $(VENV) (minutes the first time) ..."
	@$(PIP_INSTALL) -e '.[dev]'
	@$(PIP_INSTALL) setuptools wheel packaging pyyaml psutil cloudpickle
	@$(HOROVOD_BUILD) $(PIP_INSTALL) $(HOROVOD_PIP) --no-build-isolation horovod
	@touch $@ $(VENV)/.setup

clean:
	@rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache
