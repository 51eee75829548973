# make train [ARGS="--flag=..."]   set up, then train on this machine
# make reproduce LEVEL=... SEEDS=3 train several seeds, draw their curves, compare them with a band
# make check                       lint, types, and the tests that take a moment: about 2 minutes
# make test                        lint, types, and all tests but the next groups
# make test ALL=1                  all tests in one go, as CI runs them; as root, it starts a Docker engine
# make test-long                   those that took more than 15 s of processor time
# make test-docker                 builds the images and tests them (11 minutes the first time)
# make test-zoo                    many machines, made of network namespaces; needs root
# make test-slurm                  a cluster of Slurm on this machine; needs root, slurm-wlm and munge
# make test-ray                    a Ray cluster on this machine, whose nodes come and go
# make test-faults                 full disks, lost learners, broken levels; needs root
# make test-cluster                a run over three machines, made of network namespaces; needs root
# make wheel                       dist/impala_tf-VERSION-py3-none-any.whl, to install anywhere
# make docs                        the documentation as a site, in site/
# make setup | make setup-dev      only the set-up
# All tests take ARGS for pytest:  make check ARGS="-k vtrace"

PYTHON ?= python3
VENV := .venv
# uv takes a fraction of pip's time, but knows nothing of the indexes and proxies that pip is
# configured with: there, pip installs.
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c impala_tf/constraints.txt
UV := $(VENV)/bin/uv pip install --quiet --system-certs --python $(VENV)/bin/python -c impala_tf/constraints.txt
INSTALL = { $(PIP) uv && $(UV) $(WHAT); } || \
    { echo "uv cannot install these packages; pip takes longer ..." >&2; $(PIP) $(WHAT); }

# The defaults, over as many frames as Pong needs on two cores; see sandbox/atari.md.
LEVEL := PongNoFrameskip-v4
SEEDS := 3
TRAIN_FLAGS := --level_name=PongNoFrameskip-v4 --total_environment_frames=8000000

# Tests with real processes often wait, so there are more workers than processors.
PYTEST := $(VENV)/bin/python -m pytest -n $(shell expr $$(nproc) + 1)
WAITING := faults or cluster or zoo or slurm or ray

# Some images set it. Each of the many processes of the tests would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train reproduce check test setup setup-dev lint format wheel docs clean
.DEFAULT_GOAL := train

train: setup
	@$(VENV)/bin/python run_experiment.py $(TRAIN_FLAGS) $(ARGS)

reproduce: setup
	@$(VENV)/bin/impala reproduce --level_name=$(LEVEL) --seeds=$$(seq -s, $(SEEDS)) $(ARGS)

check: lint
	@$(PYTEST) -n $(shell expr 2 \* $$(nproc)) -m "not (docker or slow or long or $(WAITING))" $(ARGS)

# Tests that mostly wait run beside those that compute, and come first when they want a processor.
test: setup-dev lint
ifdef ALL
	@(status=0; $(PYTEST) -n $$(nproc) -m "$(WAITING)" $(ARGS) || status=$$?; \
	    docker/engine-for-tests && $(VENV)/bin/python -m tests.helpers.compose; \
	    $(PYTEST) -n 0 -m docker tests/docker $(ARGS) || status=$$?; exit $$status) >$(VENV)/waiting.log 2>&1 & waiting=$$!; status=0; \
	    nice -n 5 $(PYTEST) -m "not (docker or $(WAITING))" $(ARGS) || status=$$?; \
	    wait $$waiting || status=$$?; cat $(VENV)/waiting.log; exit $$status
else
	@$(PYTEST) -m "always or not (docker or long or $(WAITING))" $(ARGS)
endif

test-%: setup-dev
	@$(PYTEST) -m $* $(ARGS)

lint: $(VENV)/.setup-check
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

wheel: $(VENV)/bin/python
	@rm -rf build dist
	@$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@rm -rf build
	@ls dist/*.whl

format: $(VENV)/.setup-check
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

docs: $(VENV)/.setup-docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet
	@echo "written to site/: open site/index.html"

setup: $(VENV)/.setup
setup-dev: $(VENV)/.setup-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
	    { echo "make: needs Python 3.11 or 3.12; name one with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	    { echo "make: Python has no venv; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.setup: WHAT := -e '.[learner]'
$(VENV)/.setup: pyproject.toml impala_tf/constraints.txt | $(VENV)/bin/python
	@echo "Installing packages into $(VENV) (about 3 GB on disk) ..."
	@$(INSTALL)
	@touch $@

# Docstrings are read, not imported, so the site needs none of the project's other packages.
$(VENV)/.setup-docs: WHAT := mkdocs mkdocs-material 'mkdocstrings[python]'
$(VENV)/.setup-docs: pyproject.toml impala_tf/constraints.txt | $(VENV)/bin/python
	@$(INSTALL)
	@touch $@

$(VENV)/.setup-check: WHAT := -e '.[learner,worlds,procgen,retro,sweep,wandb,mirror,ray,hub,docs,dev]'
$(VENV)/.setup-check: pyproject.toml impala_tf/constraints.txt | $(VENV)/bin/python
	@echo "Installing packages and test tools into $(VENV) ..."
	@UV_COMPILE_BYTECODE=1; export UV_COMPILE_BYTECODE; $(INSTALL)
	@touch $@ $(VENV)/.setup

# Horovod is compiled against the installed TensorFlow, so it comes last.
$(VENV)/.setup-dev: $(VENV)/.setup-check impala_tf/cluster/install_horovod.sh
	@command -v cmake >/dev/null && command -v g++ >/dev/null || \
	    { echo "make: Horovod needs a compiler; on Debian: apt-get install cmake g++" >&2; exit 1; }
	@echo "Installing Horovod into $(VENV) (it is compiled once, which takes minutes) ..."
	@sh impala_tf/cluster/install_horovod.sh $(VENV)/bin/python --quiet
	@touch $@

clean:
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
