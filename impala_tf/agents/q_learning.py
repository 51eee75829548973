"""Exploration and TD errors, which only actors whose agent has Q-values need."""

from __future__ import annotations

import numpy as np

from impala_tf.agents import exploration
from impala_tf.agents.returns import n_step_returns
from impala_tf.config import Config, algorithm
from impala_tf.types import Episode, Unroll


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
        self._reported = exploration.reported(epsilons, levels)

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
