"""How far the answers of an exported model are from those of the agent that was trained."""

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
# Of the largest logit. Rounding the weights is no error; a wrong model is off by more.
_TOLERANCES = {"float32": 1e-3, "float16": 2e-2, "int8": 0.25}
_CURES = {
    "float32": "nothing was rounded, so this is a fault: please report it",
    "float16": "give float32",
    "int8": "give float16 or float32",
}


class Difference(NamedTuple):
    """Of the logits for observations that the agent sees when it plays."""

    observations: int
    largest: float
    largest_logit: float  # of the trained agent
    same_choice: float  # the share of observations with the same most likely action

    def __str__(self) -> str:
        return (
            f"on {self.observations:,} observations of play, the model's logits differ by at most"
            f" {self.largest:.2g} from those of the trained agent (the largest is"
            f" {self.largest_logit:.2g}); {100 * self.same_choice:.4g} % of the most likely actions"
            " are the same"
        )


def difference(trained: TrainedAgent, exported: ExportedAgent, precision: str) -> Difference:
    """Returns how far an exported model is from its agent while that one plays.

    Args:
      trained: the agent.
      exported: the model.
      precision: --export_precision.

    Raises:
      ConfigError: further than rounding explains, or the level raises.
    """
    config, spec, agent = trained.config, trained.spec, trained.agent
    layout, choose = layout_of(spec), greedy_of(spec.actions)
    policy = exported.policy(_ENVS, config.run.seed, "sampled")
    first = suites.levels(config.environment)[0].level_name  # the one that `make` makes
    found: list[tuple[np.ndarray, np.ndarray]] = []
    named = functools.partial(
        games.errors_named, first, lambda: f"after {len(found)} steps of play with the model"
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
            before = tf.nest.map_structure(np.asarray, state)
            answer, _ = policy(env_output, before)
            seen = tf.nest.map_structure(tf.constant, layout.to_network(env_output))
            outputs, state = step(seen, state)
            found.append((answer.policy_logits, outputs.policy_logits.numpy()))
            with named():
                env_output = environment.step(answer.action)
    finally:
        environment.close()
    got, wanted = (np.concatenate(each) for each in zip(*found, strict=True))
    same = np.isclose(choose(got), choose(wanted), atol=1e-2).reshape(len(got), -1).all(axis=1)
    result = Difference(
        len(got), float(np.abs(got - wanted).max()), float(np.abs(wanted).max()), same.mean()
    )
    if not result.largest <= _TOLERANCES[precision] * max(1.0, result.largest_logit):
        raise ConfigError(
            f"--export_precision={precision}: {result}, which is too far; {_CURES[precision]}"
        )
    return result
