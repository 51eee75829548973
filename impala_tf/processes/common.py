"""What every process does first."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.environments import factory
from impala_tf.identity import Identity
from impala_tf.logdir import Logdir
from impala_tf.shutdown import StopRequest
from impala_tf.types import EnvironmentSpec


def begin(config: Config) -> tuple[Config, EnvironmentSpec, Logdir, StopRequest]:
    """Takes the signals, looks the level up and fills in the flags that it decides.

    Raises:
      ConfigError: the level, or the agent for it, cannot be used.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    logging.getLogger("impala_tf").setLevel(logging.INFO)
    stop = StopRequest()
    stop.install()
    config, spec = resolve(config)
    return config, spec, logdir_of(config), stop


def resolve(config: Config) -> tuple[Config, EnvironmentSpec]:
    """Returns the config with every flag filled in, and what the level looks like.

    Raises:
      ConfigError: the level, or the agent for it, cannot be used.
    """
    spec = factory.spec(config.environment)
    config = configs.resolve(config, spec.kind)
    configs.check_observation(config.agent.agent_name, spec)
    return config, spec


def logdir_of(config: Config) -> Logdir:
    """Returns the logdir of a resolved config."""
    return Logdir(Path(configs.known(config.run.logdir)))


def credentials_dir(config: Config) -> Path:
    """Returns the folder of the run's certificates."""
    return Path(config.process.credentials or logdir_of(config).credentials)


def identity_of(config: Config, spec: EnvironmentSpec) -> Identity:
    """Returns what a checkpoint must share with a run that goes on from it."""
    return Identity(
        level_name=spec.level_name,
        agent_name=config.agent.agent_name,
        num_actions=spec.num_actions,
        observation_shape=list(spec.observation_shape),
    )


def going_on(checkpoint: Path | str | None, environment_frames: int) -> str:
    """Returns what users are told when a run goes on."""
    return f"going on from {checkpoint}, {environment_frames:,} frames"


def seed_of(seed: int, role: str, task: int = 0) -> int:
    """Returns the seed of one process (31 bits), different for every (seed, role, task)."""
    words = [seed, int.from_bytes(role.encode(), "little"), task]
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)
