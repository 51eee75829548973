"""Samples actions without TensorFlow, from the policies that `distributions` defines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from impala_tf.agents.exploration import EVALUATION_EPSILON
from impala_tf.types import ActionSpec

# The standard deviations of a Gaussian policy stay between exp(-5) and exp(2).
LOG_STD_RANGE = (-5.0, 2.0)
MASKED_LOGIT = -1e9
"""The logit or Q-value of an action that a level does not allow at the moment."""
_TINY = 1e-20

Sampler = Callable[[np.ndarray], np.ndarray]
"""Maps logits, float32 [N, P], to actions [N, *ActionSpec.shape]."""


def sampler_of(actions: ActionSpec, rng: np.random.Generator) -> Sampler:
    """Returns a function that samples actions from a policy's logits.

    Args:
      actions: the specification of the level's actions.
      rng: the random generator to sample with.
    """
    if actions.kind == "continuous":
        return lambda logits: _gaussian(logits, rng)
    ends = np.cumsum(actions.sizes)[:-1]
    if actions.kind == "multi_discrete":
        return lambda logits: np.stack(
            [_categorical(part, rng) for part in np.split(logits, ends, axis=-1)], axis=-1
        )
    return lambda logits: _categorical(logits, rng)


def greedy_of(actions: ActionSpec) -> Sampler:
    """Returns a function that takes the most likely actions, or those with the largest Q-values."""
    if actions.kind == "continuous":
        return lambda logits: np.split(logits, 2, axis=-1)[0]
    ends = np.cumsum(actions.sizes)[:-1]
    if actions.kind == "multi_discrete":
        return lambda logits: np.stack(
            [_largest(part) for part in np.split(logits, ends, axis=-1)], axis=-1
        )
    return _largest


def epsilon_greedy_of(actions: ActionSpec, rng: np.random.Generator) -> Sampler:
    """Returns a function that samples epsilon-greedily from Q-values, with EVALUATION_EPSILON."""

    def sample(q_values: np.ndarray) -> np.ndarray:
        random = _largest(np.where(q_values > MASKED_LOGIT, rng.random(q_values.shape), -1.0))
        return np.where(rng.random(len(q_values)) < EVALUATION_EPSILON, random, _largest(q_values))

    return sample


def _largest(logits: np.ndarray) -> np.ndarray:
    return np.argmax(logits, axis=-1).astype(np.int32)


def _categorical(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws from softmax(logits) [N, A] with the Gumbel-max trick; returns int32 [N]."""
    uniform = np.maximum(rng.random(logits.shape, np.float32), np.float32(_TINY))
    return np.argmax(logits - np.log(-np.log(uniform)), axis=-1).astype(np.int32)


def _gaussian(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    mean, log_std = np.split(logits, 2, axis=-1)
    std = np.exp(np.clip(log_std, *LOG_STD_RANGE))
    sample: np.ndarray = mean + std * rng.standard_normal(mean.shape, np.float32)
    return sample.astype(np.float32)
