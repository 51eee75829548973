"""What an actor does besides if its agent has Q-values."""

from __future__ import annotations

import numpy as np

from impala_tf.agents import exploration
from impala_tf.agents.interface import AgentInterface
from impala_tf.agents.returns import n_step_returns
from impala_tf.config import Config, algorithm
from impala_tf.types import EnvironmentSpec, Episode, Unroll


class QLearning:
    """How an actor explores, and what its agent's errors are (arXiv 1803.00933, section 3).

    Args:
      config: the run's.
      epsilons: how often each environment explores, float32 [N].
      levels: which level each environment plays, int [N].

    Attributes:
      sends_errors: whether the algorithm uses the errors: it has a replay.
    """

    def __init__(self, config: Config, epsilons: np.ndarray, levels: np.ndarray) -> None:
        self._loss = config.loss
        self.sends_errors = algorithm(config.loss.algorithm).replays
        self.epsilons = epsilons
        self._reported = exploration.reported(epsilons, levels)

    @classmethod
    def of(
        cls,
        interface: AgentInterface,
        config: Config,
        spec: EnvironmentSpec,
        levels: np.ndarray,
        actor: int,
        num_actors: int,
    ) -> QLearning | None:
        """Returns how an actor explores; None if its agent has no Q-values.

        Args:
          interface: of the actor's agent.
          config: the run's.
          spec: of the run's level, or levels.
          levels: which level each of the actor's environments plays, int [N].
          actor: index of the actor.
          num_actors: of the run; 0: unknown.
        """
        if not interface.has_q_values:
            return None
        of_each = exploration.epsilons_of(levels, len(spec.levels), actor, num_actors)
        return cls(config, of_each, levels)

    def reported(self, episodes: list[Episode]) -> list[Episode]:
        """Returns the games of environments that explore little."""
        return [each for each in episodes if self._reported[each.environment]]

    def without_td_errors(self, unroll: Unroll) -> Unroll:
        """Returns an unroll with zeros in place of errors, arrays [N, ...]."""
        zeros = np.zeros(unroll.agent_outputs.policy_logits.shape[:2], np.float32)
        return unroll._replace(td_errors=zeros)

    def with_td_errors(self, unroll: Unroll, last_q_values: np.ndarray) -> Unroll:
        """Returns an unroll with the errors that are its steps' first priorities.

        Args:
          unroll: arrays [N, ...].
          last_q_values: of the step after its last decision, float32 [N, A].
        """
        targets = n_step_returns(
            unroll.env_outputs,
            self._loss.n_step,
            self._loss.discounting,
            self._loss.reward_clipping,
        )
        seen = unroll.agent_outputs.policy_logits
        values = np.concatenate([seen, last_q_values[:, None]], axis=1).max(axis=-1)
        bootstrap = np.take_along_axis(values, targets.bootstrap, axis=1)
        chosen = np.take_along_axis(seen, unroll.agent_outputs.action[..., None], axis=-1)[..., 0]
        errors = np.abs(targets.returns + targets.discounts * bootstrap - chosen)
        return unroll._replace(td_errors=errors.astype(np.float32))
