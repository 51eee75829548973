"""The first steps of every process, and what all derive from the config in the same way."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given, user_commands
from impala_tf.environments import suites
from impala_tf.logdir import Logdir
from impala_tf.machine.process_lifetime import StopRequest
from impala_tf.processes import provenance
from impala_tf.types import EnvironmentSpec


def begin(given: Given) -> tuple[Config, EnvironmentSpec, Logdir, StopRequest]:
    """Sets up logging and signal handlers, looks up the level, and resolves the config.

    Raises:
      ConfigError: the level cannot be used, or the agent does not fit it.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    logging.getLogger("impala_tf").setLevel(logging.INFO)
    stop = StopRequest()
    stop.install()
    config, spec = resolve(given)
    spec = provenance.keep_offsets(spec, provenance.read(logdir_of(config)))
    stop.install()  # again: a level's code may have replaced the handlers
    return config, spec, logdir_of(config), stop


def resolve(given: Given) -> tuple[Config, EnvironmentSpec]:
    """Returns the config with every flag filled in, and the level's spec.

    Those of a run's file are filled in already, and its level was looked at.

    Raises:
      ConfigError: the level cannot be used, or the agent does not fit it or its flags.
    """
    if given.spec is not None:
        return configs.replace(Config(), **given.flags), given.spec
    with same_folder():
        spec = suites.spec(given.environment)
    config = configs.resolve(given, spec.kind, spec.actions.kind == "continuous")
    configs.check_observation(config.agent.agent_name, spec)
    configs.check_network(config)
    configs.check_algorithm(config, spec)
    return config, spec


@contextlib.contextmanager
def same_folder() -> Iterator[None]:
    """Returns to the current folder at the end: a level may leave it, and --logdir is relative."""
    try:
        before = Path.cwd()
    except FileNotFoundError:  # it was deleted
        before = None
    try:
        yield
    finally:
        if before is not None:
            os.chdir(before)


def logdir_of(config: Config) -> Logdir:
    """Returns the folder of a run."""
    return Logdir(Path(config.run.logdir))


def credentials_dir(config: Config) -> Path:
    """Returns the folder with the run's certificates."""
    return Path(config.process.credentials or logdir_of(config).credentials)


def resume_message(checkpoint: Path | str | None, environment_frames: int) -> str:
    """Returns the message for a run that resumes."""
    return f"resuming from {checkpoint}, {environment_frames:,} frames"


def seed_of(seed: int, role: str, task: int = 0) -> int:
    """Returns the seed of one process (31 bits), different for every (seed, role, task)."""
    words = [seed, int.from_bytes(role.encode(), "little"), task]
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def check_package(flag: str, package: str, extra: str) -> None:
    """Raises ConfigError if a package that a flag needs, from one of our extras, is missing."""
    if importlib.util.find_spec(package) is None:
        install = user_commands.install_extra(extra)
        raise ConfigError(f"{flag}: needs the package {package}, which is in an extra: {install}")
