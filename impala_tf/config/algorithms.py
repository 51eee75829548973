"""What is particular to an algorithm: one record each, in a file of `impala_tf.algorithms`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from impala_tf.config import plug_ins
from impala_tf.config.errors import ConfigError
from impala_tf.types import EnvironmentSpec, Kind

if TYPE_CHECKING:
    from impala_tf.config.flags import Config

Flags = Mapping[str, Any]

ALGORITHMS = {
    "impala": "impala_tf.algorithms.impala",
    "appo": "impala_tf.algorithms.appo",
    "ppo": "impala_tf.algorithms.ppo",
    "a3c": "impala_tf.algorithms.a3c",
    "dqn": "impala_tf.algorithms.dqn",
    "pqn": "impala_tf.algorithms.pqn",
}
"""{name: module with the record `ALGORITHM`}."""


def learns_a_policy(config: Config, spec: EnvironmentSpec) -> list[str]:
    """Returns one line if the agent has no policy; `Algorithm.problems` of most algorithms."""
    if config.agent.heads == "policy":
        return []
    return [
        f"--heads={config.agent.heads}: {config.loss.algorithm} learns a policy; leave the flag"
        " out, or give --algorithm=dqn or pqn"
    ]


def learns_q_values(config: Config, spec: EnvironmentSpec) -> list[str]:
    """Returns one line for each thing that keeps an algorithm from learning Q-values."""
    name, process = config.loss.algorithm, config.process
    lines = []
    if spec.actions.kind != "discrete":
        lines.append(
            f"--algorithm={name}: learns a value of each action, but {spec.level_name} has"
            f" {spec.actions}; use impala, appo or ppo"
        )
    if config.optimizer.learning_rate_schedule == "kl":
        lines.append(
            f"--learning_rate_schedule=kl: {name} has no policy whose kl could be measured; give"
            " linear or constant"
        )
    if process.inference == "learner":
        lines.append(
            f"--inference=learner: {name}'s actors explore each in its own way; leave it out"
        )
    if config.agent.heads == "policy":
        lines.append(f"--heads=policy: {name} learns Q-values; give q_values or dueling")
    return lines


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """All that the rest of the project asks about an algorithm.

    The callables of its learner may import TensorFlow; a record itself is read without it.

    Attributes:
      about: one line for --help, with the source.
      uses: takes (GradientStep, EnvironmentSpec, Config); returns the `BatchUses`.
      step: takes (Agent, ObservationLayout, Config, LearnerGroup); returns the `GradientStep`.
        Its statistics, `STATS`, are columns of `monitoring.metrics.METRICS`; gradient_norm,
        policy_lag_mean and policy_lag_max are among them. None: the step of a policy, made from
        the next three.
      estimate: takes (Transitions, LossConfig); returns the `Estimates` of a policy's losses, or
        of Q-values that are learned from unrolls.
      objective: takes (Transitions, advantages, LossConfig); returns a policy's `Objective`.
      estimates_once: whether estimates are made before a batch's first step, for all of its steps.
      defaults: values of flags that are not given, in place of the preset's.
      image_defaults, vector_defaults: the same, on levels of these kinds.
      continuous_defaults: the same, on vectors with continuous actions.
      problems: takes (config, spec); returns one line for each reason why the level cannot be
        learned, or not with these flags.
      actors_wait: whether actors wait for the update that uses their last unroll.
      actors_send: what actors send to their learner.
      acting: what actors that choose actions compute with: a network that the learner has converted
        for LiteRT, or TensorFlow.
      replays: whether steps are drawn from a replay, at --replay_ratio, and not from the batches.
      splits_batches: whether the gradients of a batch's parts add up to that of the whole batch.
    """

    about: str
    uses: Callable[..., Any]
    step: Callable[..., Any] | None = None
    estimate: Callable[..., Any] | None = None
    objective: Callable[..., Any] | None = None
    estimates_once: bool = False
    defaults: Flags = dataclasses.field(default_factory=dict)
    image_defaults: Flags = dataclasses.field(default_factory=dict)
    vector_defaults: Flags = dataclasses.field(default_factory=dict)
    continuous_defaults: Flags = dataclasses.field(default_factory=dict)
    problems: Callable[[Config, EnvironmentSpec], list[str]] = learns_a_policy
    actors_wait: bool = False
    actors_send: Literal["unrolls", "gradients"] = "unrolls"
    acting: Literal["litert", "tensorflow"] = "litert"
    replays: bool = False
    splits_batches: bool = True

    def defaults_on(self, kind: Kind, continuous: bool) -> dict[str, Any]:
        """Returns the defaults on a kind of level, whose actions may be continuous."""
        flags = dict(self.defaults)
        if kind in ("image", "procgen"):
            flags.update(self.image_defaults)
        elif kind == "vector":
            flags.update(self.vector_defaults)
            flags.update(self.continuous_defaults if continuous else {})
        return flags


def algorithm(name: str) -> Algorithm:
    """Returns the record of an algorithm; `name` is a key of ALGORITHMS, or module:NAME.

    Raises:
      ConfigError: module:NAME names no record.
    """
    if plug_ins.is_own(name):
        own = plug_ins.load("algorithm", name)
        if not isinstance(own, Algorithm):
            raise ConfigError(
                f"--algorithm={name}: must be a record impala_tf.config.algorithms.Algorithm, but"
                f" is of type {type(own).__name__}"
            )
        if own.step is None and (own.estimate is None or own.objective is None):
            raise ConfigError(f"--algorithm={name}: needs `step`, or `estimate` and `objective`")
        return own
    record: Algorithm = importlib.import_module(ALGORITHMS[name]).ALGORITHM
    return record
