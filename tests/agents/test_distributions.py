"""Policies over one choice of A actions, and how actions are chosen from them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from impala_tf.agents.distributions import (
    Categorical,
    DiagonalGaussian,
    distribution_of,
)
from impala_tf.types import ActionSpec

LOGITS = [[0.0, 1.0, -2.0, 0.5], [3.0, 3.0, -50.0, 1.0]]


def draws(seed: int, count: int, logits: list[list[float]] = LOGITS) -> np.ndarray:
    """Returns `count` actions for every row of `logits`, [count, N]."""
    generator = tf.random.Generator.from_seed(seed)
    tiled = tf.tile(tf.constant(logits), [count, 1])
    actions = Categorical(4).sample(tiled, generator)
    assert actions.dtype == tf.int32
    return actions.numpy().reshape(count, len(logits))


def test_draws_repeat_with_the_seed_and_differ_from_call_to_call() -> None:
    """--seed must repeat a run, and an actor must not draw the same number at every step."""
    np.testing.assert_array_equal(draws(seed=3, count=500), draws(seed=3, count=500))
    assert np.any(draws(seed=3, count=500) != draws(seed=4, count=500))
    generator = tf.random.Generator.from_seed(3)
    logits = tf.zeros((200, 4))
    first, second = (Categorical(4).sample(logits, generator).numpy() for _ in range(2))
    assert np.any(first != second)


SCIPY = np.random.default_rng(1)
MEAN, LOG_STD = SCIPY.normal(size=(2, 5, 3)), SCIPY.normal(size=(2, 5, 3)) / 2
GAUSSIAN = tf.constant(np.concatenate([MEAN, LOG_STD], -1), tf.float32)


def test_gaussian_log_probabilities_and_entropies_are_scipys() -> None:
    """V-trace and the surrogates are ratios of them."""
    actions = SCIPY.normal(size=(2, 5, 3))
    density = scipy.stats.norm(MEAN, np.exp(LOG_STD))
    policy = DiagonalGaussian(3)
    assert policy.num_logits == 6
    found = policy.log_prob(GAUSSIAN, tf.constant(actions, tf.float32))
    np.testing.assert_allclose(found, density.logpdf(actions).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(policy.entropy(GAUSSIAN), density.entropy().sum(-1), rtol=1e-4)


@pytest.mark.parametrize(
    "actions",
    [
        ActionSpec("discrete", (4,)),
        ActionSpec("multi_discrete", (3, 2, 4)),
        ActionSpec("continuous", (2,)),
    ],
    ids=lambda actions: actions.kind,
)
def test_entropy_and_kl_are_means_over_draws(actions: ActionSpec) -> None:
    """H(p) = -E log p, KL(p || q) = E (log p - log q)."""
    policy = distribution_of(actions)
    rng = np.random.default_rng(3)
    size = (1, policy.num_logits)
    p, q = (tf.constant(rng.normal(size=size) / 2, tf.float32) for _ in range(2))
    many = tf.tile(p, [50_000, 1])
    drawn = policy.sample(many, tf.random.Generator.from_seed(5))
    assert (drawn.shape[1:], drawn.dtype.name) == (actions.shape, actions.dtype)
    log_p, log_q = (policy.log_prob(tf.tile(each, [50_000, 1]), drawn) for each in (p, q))
    np.testing.assert_allclose(policy.entropy(p)[0], -np.mean(log_p), atol=0.03)
    np.testing.assert_allclose(policy.kl_divergence(p, q)[0], np.mean(log_p - log_q), atol=0.03)
    assert policy.features(drawn).shape[0] == 50_000
