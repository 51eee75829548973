"""Policies: log probabilities, entropies and divergences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from impala_tf.agents.distributions import DiagonalGaussian, distribution_of
from impala_tf.types import ActionSpec

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


def test_an_agent_sees_the_action_that_the_environment_got() -> None:
    """Bounds are [-1, 1]; a Gaussian has none."""
    drawn = tf.constant([[-3.0, 0.5, 1.5]])
    np.testing.assert_array_equal(DiagonalGaussian(3).features(drawn), [[-1.0, 0.5, 1.0]])


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
