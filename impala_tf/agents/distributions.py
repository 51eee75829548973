"""Distributions over actions, parametrised by the outputs of the policy head."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from impala_tf.agents.exploration import EVALUATION_EPSILON
from impala_tf.agents.sampling import LOG_STD_RANGE, MASKED_LOGIT
from impala_tf.types import ActionSpec

_TINY = 1e-20


def masked(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Returns logits that are MASKED_LOGIT where a mask is 0, so that these actions have P = 0.

    Args:
      logits: float32 [..., P].
      mask: numbers [..., P]. If all are 0, as in an unroll without games, nothing is masked.
    """
    is_allowed = mask > 0
    is_allowed |= ~tf.reduce_any(is_allowed, axis=-1, keepdims=True)
    return tf.where(is_allowed, logits, MASKED_LOGIT)


class Categorical:
    """One of A actions, int32 [...]; P = A unnormalised log-probabilities.

    All distributions have these functions of `logits`, float32 [..., P], and of actions
    [..., *ActionSpec.shape].

    Attributes:
      num_logits: P, the number of parameters.
    """

    def __init__(self, num_actions: int) -> None:
        self.num_logits = num_actions

    def log_prob(self, logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """Returns log pi(a|x), float32 [...]; the log density if actions are continuous."""
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the entropy in nats, float32 [...]."""
        log_policy = self._log_probs(logits)
        return -tf.reduce_sum(tf.exp(log_policy) * log_policy, axis=-1)

    def kl_divergence(self, logits: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """Returns KL(p || q) in nats, float32 [...]; p has `logits`, q has `other`."""
        log_p, log_q = self._log_probs(logits), self._log_probs(other)
        return tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)

    def sample(self, logits: tf.Tensor, generator: tf.random.Generator) -> tf.Tensor:
        """Draws actions (Gumbel-max trick)."""
        uniform = generator.uniform(tf.shape(logits), minval=tf.constant(_TINY))
        return tf.argmax(logits - tf.math.log(-tf.math.log(uniform)), -1, tf.int32)

    def mode(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the most likely actions."""
        return tf.argmax(logits, -1, tf.int32)

    def features(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns actions as network inputs, float32 [..., F]: here one-hot vectors."""
        return tf.one_hot(actions, self.num_logits)

    def _log_probs(self, logits: tf.Tensor) -> tf.Tensor:
        return tf.nn.log_softmax(logits)


class EpsilonGreedy(Categorical):
    """A uniformly random action with probability epsilon, else the one with the largest Q-value.

    Args:
      num_actions: A.
      epsilon: a number, or float32 [N], one per environment, for logits [N, A].
    """

    def __init__(self, num_actions: int, epsilon: float | np.ndarray = EVALUATION_EPSILON) -> None:
        super().__init__(num_actions)
        self._epsilon = np.asarray(epsilon, np.float32)

    def sample(self, logits: tf.Tensor, generator: tf.random.Generator) -> tf.Tensor:
        """See `Categorical`."""
        greedy = self.mode(logits)
        ranks = tf.where(logits > MASKED_LOGIT, generator.uniform(tf.shape(logits)), -1.0)
        random = tf.argmax(ranks, -1, tf.int32)
        return tf.where(generator.uniform(tf.shape(greedy)) < self._epsilon, random, greedy)


class MultiCategorical:
    """Several choices at once, independent of each other: int32 [..., len(sizes)]."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.num_logits = sum(sizes)
        self._sizes = list(sizes)
        self._parts = [Categorical(size) for size in sizes]

    def log_prob(self, logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        choices = tf.unstack(actions, axis=-1)
        parts = zip(self._parts, self._split(logits), choices, strict=True)
        return tf.add_n([part.log_prob(logit, choice) for part, logit, choice in parts])

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        parts = zip(self._parts, self._split(logits), strict=True)
        return tf.add_n([part.entropy(logit) for part, logit in parts])

    def kl_divergence(self, logits: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        parts = zip(self._parts, self._split(logits), self._split(other), strict=True)
        return tf.add_n([part.kl_divergence(p, q) for part, p, q in parts])

    def sample(self, logits: tf.Tensor, generator: tf.random.Generator) -> tf.Tensor:
        """See `Categorical`."""
        parts = zip(self._parts, self._split(logits), strict=True)
        return tf.stack([part.sample(logit, generator) for part, logit in parts], axis=-1)

    def mode(self, logits: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        parts = zip(self._parts, self._split(logits), strict=True)
        return tf.stack([part.mode(logit) for part, logit in parts], axis=-1)

    def features(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns the concatenated one-hot vectors of the choices."""
        parts = zip(self._parts, tf.unstack(actions, axis=-1), strict=True)
        return tf.concat([part.features(action) for part, action in parts], axis=-1)

    def _split(self, logits: tf.Tensor) -> list[tf.Tensor]:
        return tf.split(logits, self._sizes, axis=-1)


class DiagonalGaussian:
    """D independent normal variables, float32 [..., D]; P = 2 D: means, then log deviations."""

    def __init__(self, size: int) -> None:
        self.num_logits = 2 * size

    def log_prob(self, logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        mean, log_std = _mean_and_log_std(logits)
        squares = tf.square((actions - mean) * tf.exp(-log_std))
        return -tf.reduce_sum(0.5 * squares + log_std + 0.5 * math.log(2.0 * math.pi), axis=-1)

    def entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        _, log_std = _mean_and_log_std(logits)
        return tf.reduce_sum(log_std + 0.5 * math.log(2.0 * math.pi * math.e), axis=-1)

    def kl_divergence(self, logits: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        (mean_p, log_p), (mean_q, log_q) = _mean_and_log_std(logits), _mean_and_log_std(other)
        squares = tf.exp(2.0 * (log_p - log_q)) + tf.square((mean_p - mean_q) * tf.exp(-log_q))
        return tf.reduce_sum(log_q - log_p + 0.5 * (squares - 1.0), axis=-1)

    def sample(self, logits: tf.Tensor, generator: tf.random.Generator) -> tf.Tensor:
        """See `Categorical`."""
        mean, log_std = _mean_and_log_std(logits)
        return mean + tf.exp(log_std) * generator.normal(tf.shape(mean))

    def mode(self, logits: tf.Tensor) -> tf.Tensor:
        """See `Categorical`."""
        return _mean_and_log_std(logits)[0]

    def features(self, actions: tf.Tensor) -> tf.Tensor:
        """Returns the actions clipped to [-1, 1], which are the environment's bounds, if any."""
        return tf.clip_by_value(actions, -1.0, 1.0)


Distribution: TypeAlias = Categorical | MultiCategorical | DiagonalGaussian


def distribution_of(actions: ActionSpec) -> Distribution:
    """Returns the distribution over a level's actions."""
    if actions.kind == "discrete":
        return Categorical(actions.sizes[0])
    if actions.kind == "multi_discrete":
        return MultiCategorical(actions.sizes)
    return DiagonalGaussian(actions.sizes[0])


def _mean_and_log_std(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    mean, log_std = tf.split(logits, 2, axis=-1)
    return mean, tf.clip_by_value(log_std, *LOG_STD_RANGE)
