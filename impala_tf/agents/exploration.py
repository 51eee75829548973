"""Exploration and TD errors, which only actors whose agent has Q-values need."""

from __future__ import annotations

import numpy as np

from impala_tf.agents.n_step_returns import n_step_returns
from impala_tf.config import Config, algorithm
from impala_tf.types import Episode, Unroll

# For agents that play without learning. The literature has 0.001 to 0.05.
EVALUATION_EPSILON = 0.01
# Returns of an environment that explores more often than this say little about the agent's skill.
REPORTED_EPSILON = 0.05
# Epsilon and alpha of Ape-X (arXiv 1803.00933, section 4.1).
_EPSILON, _EXPONENT = 0.4, 7.0


def epsilon_ladder(num_envs: int, actor: int, num_actors: int) -> np.ndarray:
    """Returns 0.4 ** (1 + 7 i / (M - 1)) for each environment i of one actor.

    The ladder of Ape-X (Horgan et al., 2018, arXiv 1803.00933, section 4.1), over all M
    environments of a run. Each actor's environments are spread over the whole ladder. A single
    environment gets the middle of the ladder.

    Args:
      num_envs: N, the number of environments of each actor.
      actor: the index of the actor, taken modulo `num_actors`.
      num_actors: the number of actors of the run; 0: unknown, so each actor has its own ladder.

    Returns:
      float32 [N].
    """
    actors = max(1, num_actors)
    rungs = np.arange(num_envs) * actors + actor % actors
    highest = num_envs * actors - 1
    height = rungs / highest if highest else np.full(1, 0.5)
    return (_EPSILON ** (1.0 + _EXPONENT * height)).astype(np.float32)


def epsilons_of(levels: np.ndarray, num_levels: int, actor: int, num_actors: int) -> np.ndarray:
    """Returns the epsilon of each environment of an actor. Every level has its own ladder.

    Args:
      levels: int [N], the level of each environment, from `suites.assigned`.
      num_levels: the number of levels of the run.
      actor, num_actors: see `epsilon_ladder`.

    Returns:
      float32 [N].
    """
    epsilons = np.empty(len(levels), np.float32)
    for level in np.unique(levels):
        plays_level = levels == level
        actors_of_level = max(1, len(range(level, num_actors, num_levels)))
        epsilons[plays_level] = epsilon_ladder(
            plays_level.sum(), actor // num_levels, actors_of_level
        )
    return epsilons


def reported_environments(epsilons: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Returns which environments' games show how well the agent plays, bool [N].

    These are the ones that explore little. A level without any of them reports all of its games.

    Args:
      epsilons: float32 [N].
      levels: int [N], the level of each environment.
    """
    explores_little = epsilons <= REPORTED_EPSILON
    return explores_little | ~np.isin(levels, levels[explores_little])


class QLearning:
    """An actor's exploration and its agent's TD errors (Ape-X, arXiv 1803.00933, section 3).

    Args:
      config: the run's config.
      epsilons: float32 [N], the epsilon of each environment.
      levels: int [N], the level of each environment.

    Attributes:
      epsilons: as given.
      sends_errors: whether the algorithm uses TD errors, as priorities of its replay buffer.
    """

    def __init__(self, config: Config, epsilons: np.ndarray, levels: np.ndarray) -> None:
        self._loss = config.loss
        self.sends_errors = algorithm(config.loss.algorithm).replays
        self.epsilons = epsilons
        self._reported = reported_environments(epsilons, levels)

    def reported(self, episodes: list[Episode]) -> list[Episode]:
        """Returns the games of environments that explore little."""
        return [episode for episode in episodes if self._reported[episode.environment]]

    def without_td_errors(self, unroll: Unroll) -> Unroll:
        """Returns an unroll, arrays [N, ...], with zeros in place of TD errors."""
        zeros = np.zeros(unroll.agent_outputs.policy_logits.shape[:2], np.float32)
        return unroll._replace(td_errors=zeros)

    def with_td_errors(self, unroll: Unroll, last_q_values: np.ndarray) -> Unroll:
        """Returns an unroll with absolute n-step TD errors, which are its initial priorities.

        Args:
          unroll: arrays [N, ...].
          last_q_values: float32 [N, A], the Q-values of the step after the last decision.
        """
        targets = n_step_returns(
            unroll.env_outputs,
            self._loss.n_step,
            self._loss.discounting,
            self._loss.reward_clipping,
        )
        q_values = unroll.agent_outputs.policy_logits
        values = np.concatenate([q_values, last_q_values[:, None]], axis=1).max(axis=-1)
        bootstrap = np.take_along_axis(values, targets.bootstrap, axis=1)
        actions = unroll.agent_outputs.action[..., None]
        predictions = np.take_along_axis(q_values, actions, axis=-1)[..., 0]
        errors = np.abs(targets.returns + targets.discounts * bootstrap - predictions)
        return unroll._replace(td_errors=errors.astype(np.float32))
