"""The agent of a run, from its newest or best checkpoint, for evaluation and reports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from impala_tf.agents.agent import Agent, agent_here
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import check_compatible, signature_of
from impala_tf.config import Config, ConfigError, algorithm
from impala_tf.learner.policy import value_moments
from impala_tf.processes.common import logdir_of
from impala_tf.types import EnvironmentSpec

_COUNTED = ("agent_steps", "environment_frames", "learner_updates")


class TrainedAgent(NamedTuple):
    """A run's agent with the parameters of a checkpoint."""

    config: Config  # resolved
    spec: EnvironmentSpec
    agent: Agent
    checkpoint: Path
    environment_frames: int
    progress: Mapping[str, float]  # time, steps and updates so far, as in metrics.csv


def load(config: Config, spec: EnvironmentSpec) -> TrainedAgent:
    """Makes the agent of a config and restores its parameters.

    Raises:
      ConfigError: there is no complete checkpoint, or it is of another level or network.
    """
    agent = agent_here(config.agent, spec)
    logdir = logdir_of(config)
    is_best = config.evaluation.checkpoint == "best"
    folder = logdir.best if is_best else logdir.checkpoints
    trackables: dict[str, tf.Module] = {"agent": agent}
    moments = None
    normalizes = config.loss.value_normalization == "running" and not agent.has_q_values
    if normalizes and algorithm(config.loss.algorithm).step is None:  # so `PolicyStep` wrote it
        moments = value_moments(agent)
        trackables["value_moments"] = moments
    checkpointer = Checkpointer(folder, trackables)
    signature = signature_of(config, spec)
    state = checkpointer.restore(
        lambda state: check_compatible(state["identity"], signature, config.run.logdir),
        partial=True,
    )
    if state is None or checkpointer.latest is None:
        which = "best checkpoint yet" if is_best else "checkpoint to test"
        raise ConfigError(f"--logdir={config.run.logdir}: holds no {which}")
    counters = state["counters"]
    if moments is not None:  # the baseline must be in the unit of the rewards
        agent.policy_heads.unit.assign(moments.mean, moments.std)
    progress = {
        "wall_time_s": state["recorder"]["wall_time_s"],
        **{name: int(counters[name]) for name in _COUNTED},
    }
    frames = counters["environment_frames"]
    return TrainedAgent(config, spec, agent, checkpointer.latest, frames, progress)
