"""Measures how much an exported model's outputs differ from those of the trained agent."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from impala_tf.agents.sampling import greedy_of
from impala_tf.config import ConfigError
from impala_tf.environments import suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.observations import layout_of
from impala_tf.evaluation import games
from impala_tf.evaluation.exported import ExportedAgent
from impala_tf.lazy import tf

if TYPE_CHECKING:
    from impala_tf.processes.trained_agent import TrainedAgent

_ENVS, _STEPS = 4, 250
# Relative to the largest logit. Rounded weights stay within; a wrong model does not.
_TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "int8": 0.25}
_CURES = {
    "float32": "nothing was rounded, so this is a bug: please report it",
    "float16": "give float32",
    "int8": "give float16 or float32",
}


class Difference(NamedTuple):
    """The difference of the logits, for observations from play."""

    observations: int  # how many
    largest: float  # the largest absolute difference of logits
    largest_logit: float  # the largest absolute logit of the trained agent
    same_choice: float  # the fraction of observations with the same most likely action

    def __str__(self) -> str:
        return (
            f"on {self.observations:,} observations of play, the model's logits differ by at most"
            f" {self.largest:.2g} from those of the trained agent (the largest is"
            f" {self.largest_logit:.2g}); {100 * self.same_choice:.4g} % of the most likely actions"
            " are the same"
        )


def difference(trained: TrainedAgent, exported: ExportedAgent, precision: str) -> Difference:
    """Returns how much an exported model differs from its agent, while the model plays.

    Args:
      trained: the trained agent.
      exported: the exported model.
      precision: --export_precision.

    Raises:
      ConfigError: the difference is larger than rounding explains, or the level raises.
    """
    config, spec, agent = trained.config, trained.spec, trained.agent
    layout, choose = layout_of(spec), greedy_of(spec.actions)
    policy = exported.policy(_ENVS, config.run.seed, "sampled")
    first = suites.levels(config.environment)[0].level_name  # the level that `make` makes
    logits: list[tuple[np.ndarray, np.ndarray]] = []
    named = functools.partial(
        games.errors_named, first, lambda: f"after {len(logits)} steps of play with the model"
    )
    with named():
        made = suites.make(config.environment, _ENVS, config.run.seed, num_actors=0)
    environment = BatchedEnvironment(made)
    step = tf.function(lambda *inputs: agent.step(*inputs), autograph=False)
    state = agent.initial_state(_ENVS)
    try:
        with named():
            env_output = environment.reset()
        for _ in range(_STEPS):
            core_state = tf.nest.map_structure(np.asarray, state)
            answer, _ = policy(env_output, core_state)
            inputs = tf.nest.map_structure(tf.constant, layout.to_network(env_output))
            outputs, state = step(inputs, state)
            logits.append((answer.policy_logits, outputs.policy_logits.numpy()))
            with named():
                env_output = environment.step(answer.action)
    finally:
        environment.close()
    ours, theirs = (np.concatenate(arrays) for arrays in zip(*logits, strict=True))
    same = np.isclose(choose(ours), choose(theirs), atol=1e-2).reshape(len(ours), -1).all(axis=1)
    result = Difference(
        len(ours), float(np.abs(ours - theirs).max()), float(np.abs(theirs).max()), same.mean()
    )
    if not result.largest <= _TOLERANCES[precision] * max(1.0, result.largest_logit):
        raise ConfigError(
            f"--export_precision={precision}: {result}, which is too much; {_CURES[precision]}"
        )
    return result
