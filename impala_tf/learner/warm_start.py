"""--start_from: gives a new run the parts of another run's network that fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.checkpoint.checkpointer import MismatchError, read_variables
from impala_tf.checkpoint.warm_start import Source, alike
from impala_tf.config import ConfigError
from impala_tf.learner.policy import value_moments
from impala_tf.learner.statistics import DictStatistics, PartStatistics
from impala_tf.learner.update import Learner
from impala_tf.types import Nest


def start(learner: Learner, source: Source, signature: Mapping[str, Any]) -> dict[str, bool]:
    """Assigns a checkpoint's torso and, as far as they fit, its core, policy and baseline.

    The statistics of observations come with the torso. Optimizer, counters and all else stay new.

    Args:
      learner: a new learner.
      source: the checkpoint, with a torso that fits (see `checkpoint.warm_start.check`).
      signature: that of the new run.

    Returns:
      {part of the agent that has variables: whether it was assigned}.

    Raises:
      ConfigError: its torso does not fit.
      DamagedError: the checkpoint cannot be read, or was removed meanwhile.
    """
    agent = learner.agent
    parts = {name: _Named(modules) for name, modules in agent.parts().items()}
    taken = dict.fromkeys(parts, False)
    for name in alike(source.identity, signature):
        taken[name] = _assign(source, agent=parts[name])
        if name in ("torso", "core") and not taken[name]:
            break  # what follows would have other inputs
    if not taken["torso"]:
        raise ConfigError(f"--start_from: the torso of {source.path} does not fit this run's")
    statistics = learner.trackables().get("observation_statistics")
    if isinstance(statistics, PartStatistics | DictStatistics):
        _take(source, statistics)
    if taken.get("baseline"):
        _keep_values(source, agent)
    if taken.get("Q-values"):
        agent.q_heads.set_unit(tf.constant(0.0), tf.constant(1.0))  # without changing values
    learner.copy_to_target()
    return {name: taken[name] for name, part in parts.items() if part.variables}


def _assign(source: Source, **modules: tf.Module) -> bool:
    """Assigns all variables of modules, which are given by their names in checkpoints, or none.

    Returns:
      whether all of them are in the checkpoint with the same shapes.
    """
    variables = [variable for module in modules.values() for variable in module.variables]
    before = [variable.numpy() for variable in variables]
    try:
        read_variables(source.path, tf.train.Checkpoint(**modules), partial=True)
    except MismatchError:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return False
    return True


def _take(source: Source, statistics: PartStatistics | DictStatistics) -> None:
    if not _assign(source, observation_statistics=statistics):
        return
    statistics.limit()


def _keep_values(source: Source, agent: Agent) -> None:
    """Makes the baseline's layer predict values, not values in the other run's unit."""
    moments = value_moments(agent)
    if not _assign(source, value_moments=moments):
        return  # it is the unit already
    heads = agent.policy_heads
    heads.unit.assign(moments.mean, moments.std)
    heads.set_unit(tf.zeros_like(heads.unit.mean), tf.ones_like(heads.unit.std))


class _Named(tf.Module):
    """Holds modules under given names, which are those in checkpoints."""

    def __init__(self, modules: Mapping[str, Nest]) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
