"""The IMPALA loss: its gradient, and which steps count."""

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.distributions import Categorical
from impala_tf.agents.n_step_returns import clip_rewards
from impala_tf.learner import vtrace
from impala_tf.types import AgentOutput, EnvOutput, NetworkOutput
from tests.helpers.losses import compute, loss_config

CONFIG = loss_config(baseline_cost=0.5, entropy_cost=0.05)
T, B, A = 6, 3, 4


def unroll(seed=0):
    """Returns env outputs [T + 1, B] with a termination, a truncation and resets, and answers."""
    rng = np.random.default_rng(seed)
    terminated = np.zeros((T + 1, B), bool)
    truncated, autoreset = terminated.copy(), terminated.copy()
    terminated[2, 0] = autoreset[3, 0] = True
    truncated[4, 1] = autoreset[5, 1] = True
    env_outputs = EnvOutput(
        reward=tf.constant(rng.normal(size=(T + 1, B)) * 2, tf.float32),
        terminated=tf.constant(terminated),
        truncated=tf.constant(truncated),
        autoreset=tf.constant(autoreset),
        episode_start=tf.constant(autoreset),
        observation=tf.constant(rng.normal(size=(T + 1, B, 2)), tf.float32),
        last_action=tf.zeros((T + 1, B), tf.int32),
    )
    answers = AgentOutput(
        action=tf.constant(rng.integers(0, A, (T, B)), tf.int32),
        policy_logits=tf.constant(rng.normal(size=(T, B, A)), tf.float32),
    )
    return env_outputs, answers


def network(weights, observation):
    """A small linear network: logits and baseline from two inputs."""
    out = tf.einsum("tbi,io->tbo", observation, weights)
    return NetworkOutput(policy_logits=out[..., :A], baseline=out[..., A:])


def test_loss_and_gradient_are_those_of_the_loss_written_step_by_step():
    env_outputs, answers = unroll()
    start = np.random.default_rng(3).normal(size=(2, A + 1)) * 0.5
    weights = tf.Variable(start, dtype=tf.float64)
    as64 = tf.nest.map_structure(
        lambda t: tf.cast(t, tf.float64) if t.dtype == tf.float32 else t, (env_outputs, answers)
    )
    with tf.GradientTape() as tape:
        expected = reference_total(weights, tf.constant(start), *as64)
    weights32 = tf.Variable(start, dtype=tf.float32)
    with tf.GradientTape() as tape32:
        found = compute(network(weights32, env_outputs.observation), env_outputs, answers, CONFIG)
    np.testing.assert_allclose(found.total, expected, rtol=1e-4)
    np.testing.assert_allclose(
        tape32.gradient(found.total, weights32),
        tape.gradient(expected, weights),
        rtol=1e-3,
        atol=1e-4,
    )


def reference_total(weights, frozen_at, env_outputs, answers):
    """Returns the loss, written step by step, with the V-trace targets of `frozen_at`."""
    frozen = tf.nest.map_structure(
        lambda t: tf.cast(t, tf.float32), network(frozen_at, env_outputs.observation)
    )
    log_probs = Categorical(A).log_prob
    behaviour_logits = tf.cast(answers.policy_logits, tf.float32)
    vs, pg_advantages, _ = vtrace.from_importance_weights(
        log_probs(frozen.policy_logits[:-1], answers.action)
        - log_probs(behaviour_logits, answers.action),
        0.99 * (1.0 - tf.cast(env_outputs.terminated[1:], tf.float32)),
        tf.clip_by_value(tf.cast(env_outputs.reward[1:], tf.float32), -1, 1),
        frozen.baseline[:-1, :, 0],
        frozen.baseline[-1, :, 0],
        mask=~env_outputs.autoreset[1:],
    )
    outputs = network(weights, env_outputs.observation)
    total = tf.constant(0.0, tf.float64)
    for t in range(T):
        for b in range(B):
            if bool(env_outputs.autoreset[t + 1, b]):
                continue
            log_policy = tf.nn.log_softmax(outputs.policy_logits[t, b])
            advantage = tf.cast(pg_advantages[t, b], tf.float64)
            target = tf.cast(vs[t, b], tf.float64)
            total -= log_policy[answers.action[t, b]] * advantage
            total += 0.5 * 0.5 * (target - outputs.baseline[t, b, 0]) ** 2
            total += 0.05 * tf.reduce_sum(tf.exp(log_policy) * log_policy)
    return total


@pytest.mark.parametrize(
    ("clipping", "expected"),
    [
        ("abs_one", [-1.0, -0.5, 0.0, 1.0]),
        ("soft_asymmetric", [1.5 * np.tanh(-2), 1.5 * np.tanh(-0.1), 0.0, 5 * np.tanh(2)]),
        ("none", [-10.0, -0.5, 0.0, 10.0]),
    ],
)
def test_rewards_are_clipped_as_the_flag_says(clipping, expected):
    clipped = clip_rewards(tf.constant([-10.0, -0.5, 0.0, 10.0]), clipping, tf)
    np.testing.assert_allclose(clipped, expected, rtol=1e-6)


def test_a_policy_that_acted_itself_is_clipped_nowhere():
    """Its probability ratios are exactly 1, the bound of V-trace."""
    env_outputs, answers = unroll()
    outputs = network(tf.random.stateless_normal((2, A + 1), (1, 2)), env_outputs.observation)
    own = answers._replace(policy_logits=outputs.policy_logits[:-1])
    found = compute(outputs, env_outputs, own, CONFIG)
    assert found.rho_clip_fraction == found.c_clip_fraction == 0.0


def test_statistics_of_a_single_step_are_its_own():
    """An unroll after a reset may have no other step."""
    env_outputs, answers = unroll()
    resets = np.ones((T + 1, B), bool)
    resets[1, 0] = False
    env_outputs = env_outputs._replace(autoreset=tf.constant(resets))
    outputs = network(tf.zeros((2, A + 1)), env_outputs.observation)
    found = compute(outputs, env_outputs, answers, CONFIG)
    assert found.steps == 1.0
    np.testing.assert_allclose(found.entropy, np.log(A), rtol=1e-6)
