"""pqn's targets and its gradient step, against slow transcriptions in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.environments.observations import layout_of
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.policy_step import time_major
from impala_tf.learner.q_step import QStats, UnrollQStep
from impala_tf.types import Unroll
from tests.helpers.samples import randomize, resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T, A = 8, 9, 3
SPEC = vector_spec(size=A, num_actions=A)
USUAL = {
    "preset": "tuned", "algorithm": "pqn", "batch_size": B, "unroll_length": T, "minibatches": 2,
    "discounting": 0.9, "trace_lambda": 0.7,
}  # fmt: skip


def stats_of(step: UnrollQStep, minibatch: Minibatch) -> QStats:
    numbers, *_ = step.step(minibatch, tf.constant(0, tf.int64), tf.constant(1.0))
    return QStats(*numbers.numpy()[3:])


def step_of(**flags: Any) -> UnrollQStep:
    config = resolved_config(**{**USUAL, **flags})
    agent = agent_of(config.agent, SPEC)
    randomize(agent)
    return UnrollQStep(agent, layout_of(SPEC), config, LearnerGroup())


def unrolls_of(step: UnrollQStep, seed: int) -> Unroll:
    """Returns unrolls [B, ...] whose episodes end at random; a reset follows each end."""
    unrolls = random_unrolls(unroll_specs(step.agent, SPEC, T), B, seed)
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, B, T + 1)) < 0.15
    autoreset = np.zeros((B, T + 1), bool)
    for t in range(1, T + 1):
        autoreset[:, t] = terminated[:, t - 1] | truncated[:, t - 1]
        terminated[:, t] &= ~autoreset[:, t]
        truncated[:, t] &= ~autoreset[:, t]
    ends = {"terminated": terminated, "truncated": truncated, "autoreset": autoreset}
    return unrolls._replace(env_outputs=unrolls.env_outputs._replace(**ends))


def q_values_of(step: UnrollQStep, unrolls: Unroll) -> tf.Tensor:
    """Returns Q(x, .), float32 [B, T + 1, A]."""
    unroll = time_major(tf.nest.map_structure(tf.constant, unrolls), step.layout)
    outputs, _ = step.agent.unroll(unroll.env_outputs, unroll.core_state)
    return tf.transpose(outputs.policy_logits, (1, 0, 2))


def targets_of(unrolls: Unroll, q_values: np.ndarray, gamma: float, lambda_: float) -> np.ndarray:
    """Section 4 of arXiv 2407.04811, from each unroll's last decision to its first, [B, T]."""
    seen, best = unrolls.env_outputs, q_values.max(-1)
    targets = np.full((B, T), np.nan)
    for b in range(B):
        for t in reversed(range(T)):
            if seen.autoreset[b, t + 1]:
                continue  # no transition
            reward, value = float(seen.reward[b, t + 1]), float(best[b, t + 1])
            if seen.terminated[b, t + 1]:
                targets[b, t] = reward
            elif seen.truncated[b, t + 1] or t == T - 1:
                targets[b, t] = reward + gamma * value
            else:
                following = lambda_ * targets[b, t + 1] + (1 - lambda_) * value
                targets[b, t] = reward + gamma * following
    return targets


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_targets_equal_their_formula(lambda_: float) -> None:
    """A target that went on after an episode's end would be of another game."""
    step = step_of(trace_lambda=lambda_)
    for seed in range(4):
        unrolls = unrolls_of(step, seed)
        found = step.prepare(tf.nest.map_structure(tf.constant, unrolls))[0].numpy()
        expected = targets_of(unrolls, q_values_of(step, unrolls).numpy(), 0.9, lambda_)
        valid = ~unrolls.env_outputs.autoreset[:, 1:]
        assert np.isfinite(expected[valid]).all() and not valid.all()
        np.testing.assert_allclose(found[valid], expected[valid], rtol=1e-4, atol=1e-4)


def test_a_step_is_along_the_mean_of_half_the_squared_errors() -> None:
    """With a gradient through the targets, Q-values would be pulled towards earlier ones."""
    step = step_of(value_normalization="none")
    unrolls = unrolls_of(step, 1)
    q_values = q_values_of(step, unrolls).numpy()
    expected = targets_of(unrolls, q_values, 0.9, 0.7)
    valid = ~unrolls.env_outputs.autoreset[:, 1:]
    action = unrolls.agent_outputs.action
    chosen = np.take_along_axis(q_values[:, :T], action[..., None], -1)[..., 0]
    with tf.GradientTape() as tape:
        now = tf.gather(q_values_of(step, unrolls)[:, :T], action, batch_dims=2)
        errors = np.where(valid, expected, 0.0).astype(np.float32) - now
        loss = 0.5 * tf.reduce_mean(tf.boolean_mask(errors, valid) ** 2)
    gradients = tape.gradient(loss, step.agent.trainable_variables)
    batch = tf.nest.map_structure(tf.constant, unrolls)
    minibatch = Minibatch(batch, step.prepare(batch))
    stats = stats_of(step, minibatch)
    assert float(stats.loss_total) == pytest.approx(float(loss), rel=1e-4)
    assert float(stats.q_mean) == pytest.approx(chosen[valid].mean(), rel=1e-4)
    mean_size = np.abs(expected - chosen)[valid].mean()
    assert float(stats.td_error_mean) == pytest.approx(mean_size, rel=1e-4)
    assert float(stats.gradient_norm) == pytest.approx(
        float(tf.linalg.global_norm(gradients)), rel=1e-4
    )


def test_nothing_is_learned_from_a_masked_minibatch() -> None:
    """Of several learners, one may have nothing."""
    step = step_of()
    moments = step.trackables()["value_moments"].variables
    before = [each.numpy() for each in moments]
    assert stats_of(step, step.masked(SPEC)).gradient_norm == 0.0
    assert [each.numpy() for each in moments] == before
