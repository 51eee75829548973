"""V-trace compared with the formulas of the paper."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_tf.learner import vtrace
from tests.helpers.formulas import paper_advantages, paper_vs


def as_tensors(*arrays) -> Any:
    return [tf.constant(array, tf.float32) for array in arrays]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    T=st.sampled_from([1, 2, 5, 13]),
    B=st.sampled_from([1, 3]),
    rho_bar=st.sampled_from([0.5, 1.0, 3.7]),
    pg_rho_bar=st.sampled_from([0.7, 1.0, 2.3]),
    c_bar=st.sampled_from([0.4, 1.0, 2.0]),
    lambda_=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_vtrace_equals_the_formulas_of_the_paper(seed, T, B, rho_bar, pg_rho_bar, c_bar, lambda_):
    rng = np.random.default_rng(seed)
    # On both sides of every clip.
    log_rhos = rng.uniform(-2.0, 2.0, (T, B))
    discounts = rng.choice([0.0, 0.9, 0.99], (T, B), p=[0.2, 0.4, 0.4])
    rewards, values = rng.normal(size=(T, B)), rng.normal(size=(T, B))
    bootstrap = rng.normal(size=B)

    clips: Any = {
        "clip_rho_threshold": rho_bar,
        "clip_pg_rho_threshold": pg_rho_bar,
        "clip_c_threshold": c_bar,
        "lambda_": lambda_,
    }
    returns = vtrace.from_importance_weights(
        *as_tensors(log_rhos, discounts, rewards, values, bootstrap), **clips
    )

    vs = paper_vs(log_rhos, discounts, rewards, values, bootstrap, rho_bar, c_bar, lambda_)
    advantages = paper_advantages(log_rhos, discounts, rewards, values, bootstrap, vs, pg_rho_bar)
    np.testing.assert_allclose(returns.vs, vs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(returns.pg_advantages, advantages, rtol=1e-4, atol=1e-4)


def column(*numbers):
    return tf.constant(numbers, tf.float32)[:, None]


def test_on_policy_vtrace_is_the_n_step_bellman_target():
    returns = vtrace.from_importance_weights(
        log_rhos=column(0, 0, 0),
        discounts=column(0.5, 0.5, 0.5),
        rewards=column(1, 2, 4),
        values=column(10, 20, 30),
        bootstrap_value=tf.constant([8.0]),
    )
    # 4 + 8/2 = 8; 2 + 8/2 = 6; 1 + 6/2 = 4
    np.testing.assert_allclose(returns.vs[:, 0], [4, 6, 8])


def test_termination_inside_the_unroll_stops_the_return():
    returns = vtrace.from_importance_weights(
        log_rhos=column(0, 0, 0, 0),
        # Transition 1 ended the episode; transition 2 is the ignored step into the reset.
        discounts=column(0.5, 0.0, 0.5, 0.5),
        rewards=column(1, 2, 0, 4),
        values=column(10, 20, 30, 40),
        bootstrap_value=tf.constant([8.0]),
        mask=tf.constant([[True], [True], [False], [True]]),
    )
    # 1 + 2/2 = 2; 2; masked: its own value; 4 + 8/2 = 8
    np.testing.assert_allclose(returns.vs[:, 0], [2, 2, 30, 8])
    np.testing.assert_allclose(returns.pg_advantages[:, 0], [-8, -18, 0, -32])


def test_truncation_bootstraps_from_the_final_observations_own_baseline():
    returns = vtrace.from_importance_weights(
        log_rhos=column(0, 0, 0, 0),
        discounts=column(0.5, 0.5, 0.5, 0.5),
        rewards=column(1, 2, 0, 4),
        values=column(10, 20, 30, 40),
        bootstrap_value=tf.constant([8.0]),
        mask=tf.constant([[True], [True], [False], [True]]),
    )
    # Transition 1 led to the final observation, whose value is 30: 2 + 30/2 = 17; 1 + 17/2 = 9.5
    np.testing.assert_allclose(returns.vs[:, 0], [9.5, 17, 30, 8])
    np.testing.assert_allclose(returns.pg_advantages[:, 0], [-0.5, -3, 0, -32])


def test_nothing_crosses_a_masked_transition():
    def vs(rewards_after_reset):
        return vtrace.from_importance_weights(
            log_rhos=column(0.3, -0.2, 0.8, 0.1),
            discounts=column(0.9, 0.9, 0.9, 0.9),
            rewards=column(1, 2, 0, rewards_after_reset),
            values=column(1, 2, 3, 4),
            bootstrap_value=tf.constant([5.0]),
            mask=tf.constant([[True], [True], [False], [True]]),
        ).vs.numpy()

    first, second = vs(0.0), vs(100.0)
    np.testing.assert_array_equal(first[:3], second[:3])
    assert first[3] != second[3]


def test_targets_have_no_gradient():
    values = tf.Variable(tf.ones((3, 2)))
    with tf.GradientTape() as tape:
        returns = vtrace.from_importance_weights(
            tf.zeros((3, 2)), tf.ones((3, 2)), tf.ones((3, 2)), values, tf.ones(2)
        )
        total = tf.reduce_sum(returns.vs) + tf.reduce_sum(returns.pg_advantages)
    assert tape.gradient(total, values) is None


def test_compiled_with_an_unknown_batch_size_equals_eager():
    spec = tf.TensorSpec((4, None), tf.float32)
    signature = [spec] * 4 + [tf.TensorSpec((None,), tf.float32)]
    compiled = tf.function(
        vtrace.from_importance_weights, input_signature=signature, autograph=False
    )
    rng = np.random.default_rng(1)
    inputs = as_tensors(*rng.normal(size=(4, 4, 7)), rng.normal(size=7))
    for got, expected in zip(
        compiled(*inputs), vtrace.from_importance_weights(*inputs), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", ["log_rhos", "bootstrap_value"])
def test_a_wrong_rank_is_refused(wrong):
    arguments = {
        "log_rhos": tf.zeros((3, 2)),
        "discounts": tf.zeros((3, 2)),
        "rewards": tf.zeros((3, 2)),
        "values": tf.zeros((3, 2)),
        "bootstrap_value": tf.zeros(2),
    }
    arguments[wrong] = arguments[wrong][..., None]
    with pytest.raises(ValueError, match="rank"):
        vtrace.from_importance_weights(**arguments)
