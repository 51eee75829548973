"""How agents that learn Q-values explore: epsilon-greedy, each environment with its own epsilon."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from impala_tf.agents.distributions import Categorical

# Of agents that play without learning; in [0.001, 0.05] in the literature.
EVALUATION_EPSILON = 0.01
# An environment that explores more often than this tells little about how well the agent plays.
REPORTED_EPSILON = 0.05
_TINY = 1e-20


class EpsilonGreedy(Categorical):
    """With probability epsilon any of A actions, else that with the largest logit (Q-value).

    Args:
      num_actions: A.
      epsilon: a number, or float32 [N], one for each environment, for logits [N, A].
    """

    def __init__(self, num_actions: int, epsilon: float | np.ndarray = EVALUATION_EPSILON) -> None:
        super().__init__(num_actions)
        self._epsilon = np.asarray(epsilon, np.float32)

    def log_prob(self, logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """See `Distribution`."""
        chosen = tf.one_hot(actions, self.num_parameters)
        return tf.reduce_sum(chosen * self._log_probs(logits), axis=-1)

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """See `Distribution`."""
        log_policy = self._log_probs(logits)
        return -tf.reduce_sum(tf.exp(log_policy) * log_policy, axis=-1)

    def kl_divergence(self, logits: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """See `Distribution`."""
        log_p, log_q = self._log_probs(logits), self._log_probs(other)
        return tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)

    def sample(self, logits: tf.Tensor, generator: tf.random.Generator) -> tf.Tensor:
        """See `Distribution`."""
        greedy = self.mode(logits)
        shape = tf.shape(greedy)
        any_action = generator.uniform(shape, maxval=self.num_parameters, dtype=tf.int32)
        return tf.where(generator.uniform(shape) < self._epsilon, any_action, greedy)

    def _log_probs(self, logits: tf.Tensor) -> tf.Tensor:
        greedy = tf.one_hot(self.mode(logits), self.num_parameters)
        epsilon = self._epsilon[..., None]
        policy = epsilon / self.num_parameters + (1.0 - epsilon) * greedy
        return tf.math.log(tf.maximum(policy, _TINY))


def epsilon_ladder(
    num_envs: int, actor: int, num_actors: int, epsilon: float, exponent: float
) -> np.ndarray:
    """Returns epsilon ** (1 + exponent i / (M - 1)) for each environment i of one actor.

    The ladder of Ape-X (Horgan et al., 2018, arXiv 1803.00933, section 4.1), over all M
    environments of a run; each actor has rungs of all heights. If there is only one environment,
    it has the middle of the ladder.

    Args:
      num_envs: N, of each actor.
      actor: index of the actor; a larger one than the run has counts modulo `num_actors`.
      num_actors: of the run; 0: unknown, then each actor has a ladder of its own.
      epsilon: of the environment that explores most.
      exponent: how fast the ladder falls.

    Returns:
      float32 [N].
    """
    actors = max(1, num_actors)
    rungs = np.arange(num_envs) * actors + actor % actors
    highest = num_envs * actors - 1
    height = rungs / highest if highest else np.full(1, 0.5)
    return (epsilon ** (1.0 + exponent * height)).astype(np.float32)


def reported(epsilons: np.ndarray) -> np.ndarray:
    """Returns which environments' games tell how well the agent plays, bool [N].

    Those that explore little; all, if there are none.
    """
    little = epsilons <= REPORTED_EPSILON
    return little if little.any() else np.ones_like(little)
