"""V-trace compared with the formulas of the paper."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_tf.agents.distributions import DiagonalGaussian
from impala_tf.algorithms import impala
from impala_tf.learner import vtrace
from impala_tf.learner.losses import transitions
from impala_tf.types import AgentOutput, EnvOutput
from tests.helpers.formulas import paper_advantages, paper_vs
from tests.helpers.losses import loss_config


def as_tensors(*arrays) -> Any:
    return [tf.constant(array, tf.float32) for array in arrays]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    T=st.sampled_from([1, 2, 5, 13]),
    B=st.sampled_from([1, 3]),
    lambda_=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_vtrace_equals_the_formulas_of_the_paper(seed, T, B, lambda_):
    rng = np.random.default_rng(seed)
    # On both sides of every clip.
    log_rhos = rng.uniform(-2.0, 2.0, (T, B))
    discounts = rng.choice([0.0, 0.9, 0.99], (T, B), p=[0.2, 0.4, 0.4])
    rewards, values = rng.normal(size=(T, B)), rng.normal(size=(T, B))
    bootstrap = rng.normal(size=B)

    arrays = log_rhos, discounts, rewards, values, bootstrap
    more: Any = {"mask": tf.ones((T, B), tf.bool), "lambda_": lambda_}
    found = vtrace.from_importance_weights(*as_tensors(*arrays), **more)
    vs = paper_vs(*arrays, 1.0, 1.0, lambda_)
    advantages = paper_advantages(*arrays, vs, 1.0)
    np.testing.assert_allclose(found[0], vs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], advantages, rtol=1e-4, atol=1e-4)


def column(*numbers):
    return tf.constant(numbers, tf.float32)[:, None]


@pytest.mark.parametrize(
    ("discount", "vs", "advantages"),
    [
        # 1 + 2/2 = 2; 2; masked: its own value; 4 + 8/2 = 8
        (0.0, [2, 2, 30, 8], [-8, -18, 0, -32]),
        # Transition 1 led to the final observation, whose value is 30: 2 + 30/2 = 17; 1 + 17/2
        (0.5, [9.5, 17, 30, 8], [-0.5, -3, 0, -32]),
    ],
    ids=["terminated", "truncated"],
)
def test_an_episodes_end_inside_the_unroll_stops_the_return(discount, vs, advantages):
    """Transition 1 ended the episode; transition 2 is the ignored step into the reset."""
    found = vtrace.from_importance_weights(
        log_rhos=column(0, 0, 0, 0),
        discounts=column(0.5, discount, 0.5, 0.5),
        rewards=column(1, 2, 0, 4),
        values=column(10, 20, 30, 40),
        bootstrap_value=tf.constant([8.0]),
        mask=tf.constant([[True], [True], [False], [True]]),
    )
    np.testing.assert_allclose(found[0][:, 0], vs)
    np.testing.assert_allclose(found[1][:, 0], advantages)


def test_vtrace_of_gaussian_policies_equals_the_paper() -> None:
    """The ratios are those of densities, over all numbers of an action."""
    T, B, D = 6, 3, 2
    rng = np.random.default_rng(0)
    means, log_stds = rng.normal(size=(2, T + 1, B, D)), rng.normal(size=(2, D))
    logits = [
        np.concatenate([mean, np.broadcast_to(log_std / 3, mean.shape)], -1)
        for mean, log_std in zip(means, log_stds, strict=True)
    ]
    actions, rewards = rng.normal(size=(T, B, D)), rng.normal(size=(T + 1, B))
    values = rng.normal(size=(T + 1, B))
    never = np.zeros((T + 1, B), bool)

    def log_density(logits: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(logits[:T], 2, axis=-1)
        found: np.ndarray = scipy.stats.norm(mean, np.exp(log_std)).logpdf(actions).sum(-1)
        return found

    floats = [tf.constant(each, tf.float32) for each in (*logits, values, rewards, actions)]
    target, behaviour, baseline, reward, action = floats
    flags = [tf.constant(never)] * 4
    config = loss_config(reward_clipping="none", trace_lambda=0.9)
    steps = transitions(
        target,
        baseline,
        EnvOutput(reward, *flags, observation=(), last_action=()),  # type: ignore[misc]
        AgentOutput(action, behaviour[:T]),
        config,
        DiagonalGaussian(D),
    )
    found = impala.estimate(steps, config)
    log_rhos = log_density(logits[0]) - log_density(logits[1])
    discounts = np.full((T, B), config.discounting)
    common = (log_rhos, discounts, rewards[1:], values[:T], values[T])
    vs = paper_vs(*common, 1.0, 1.0, 0.9)
    np.testing.assert_allclose(found.value_targets, vs, rtol=1e-4, atol=1e-4)
    advantages = paper_advantages(*common, vs, 1.0)
    np.testing.assert_allclose(found.advantages, advantages, rtol=1e-4, atol=1e-4)
