"""Actions that a level does not allow have probability 0, in every place that has probabilities."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.distributions import Distribution, EpsilonGreedy, distribution_of, masked
from impala_tf.agents.sampling import epsilon_greedy_of, greedy_of, sampler_of
from impala_tf.types import ActionSpec

RNG = np.random.default_rng(7)
ACTIONS = {"discrete": ActionSpec("discrete", (5,)), "multi": ActionSpec("multi_discrete", (3, 2))}
LOGITS, OTHER = RNG.normal(size=(2, 40, 5)).astype(np.float32)
MASK = RNG.integers(0, 2, (40, 5)).astype(np.float32)
MASK[:, [0, 3]] = 1  # each choice has an allowed option


def parts_of_row(actions: ActionSpec, row: np.ndarray) -> list[np.ndarray]:
    return np.split(row, np.cumsum(actions.sizes)[:-1])


def log_probabilities(actions: ActionSpec, logits: np.ndarray, mask: np.ndarray) -> dict:
    """Returns {action: log pi(a|x)} of the allowed actions of one step, choice by choice."""
    choices = []
    pairs = zip(parts_of_row(actions, logits), parts_of_row(actions, mask), strict=True)
    for part, allowed in pairs:
        total = sum(np.exp(float(part[a])) for a in range(len(part)) if allowed[a])
        choices.append([(a, part[a] - np.log(total)) for a in range(len(part)) if allowed[a]])
    return {
        tuple(a for a, _ in pairs): sum(float(p) for _, p in pairs)
        for pairs in itertools.product(*choices)
    }


@pytest.mark.parametrize("kind", ACTIONS)
def test_probabilities_are_those_over_the_allowed_actions_alone(kind: str) -> None:
    actions = ACTIONS[kind]
    policy: Distribution = distribution_of(actions)
    p, q = (masked(tf.constant(logits), tf.constant(MASK)) for logits in (LOGITS, OTHER))
    entropy, divergence = policy.entropy(p).numpy(), policy.kl_divergence(p, q).numpy()
    for row in range(len(MASK)):
        expected, other = (
            log_probabilities(actions, logits[row], MASK[row]) for logits in (LOGITS, OTHER)
        )
        for action, log_prob in expected.items():
            chosen = tf.constant(action if kind == "multi" else action[0])
            assert float(policy.log_prob(p[row], chosen)) == pytest.approx(log_prob, abs=1e-5)
        values = np.array(list(expected.values()))
        assert entropy[row] == pytest.approx(-np.sum(np.exp(values) * values), abs=1e-5)
        differences = values - np.array(list(other.values()))
        assert divergence[row] == pytest.approx(np.sum(np.exp(values) * differences), abs=1e-5)


@pytest.mark.parametrize("kind", ACTIONS)
def test_no_way_of_choosing_takes_what_is_not_allowed(kind: str) -> None:
    actions = ACTIONS[kind]
    generator = tf.random.Generator.from_seed(3)
    logits = masked(tf.constant(LOGITS), tf.constant(MASK))
    policy = distribution_of(actions)
    rng = np.random.default_rng(1)
    chosen = [policy.mode(logits), greedy_of(actions)(logits.numpy())]
    chosen += [policy.sample(logits, generator) for _ in range(50)]
    chosen += [sampler_of(actions, rng)(logits.numpy()) for _ in range(50)]
    if kind == "discrete":
        always_explores = EpsilonGreedy(5, 1.0)
        explored = [always_explores.sample(logits, generator).numpy() for _ in range(50)]
        for row, allowed in enumerate(MASK > 0):
            assert {draw[row] for draw in explored} == set(np.flatnonzero(allowed))
        chosen += [epsilon_greedy_of(actions, rng)(logits.numpy()) for _ in range(500)]
    starts = np.array([0, *np.cumsum(actions.sizes)[:-1]])
    for each in chosen:
        flat = np.asarray(each).reshape(len(MASK), -1) + starts
        assert np.take_along_axis(MASK, flat, axis=1).all()


def test_gradients_are_finite_and_do_not_reach_what_is_not_allowed() -> None:
    logits = tf.Variable(LOGITS)
    policy = distribution_of(ACTIONS["discrete"])
    with tf.GradientTape() as tape:
        p = masked(logits, tf.constant(MASK))
        loss = tf.reduce_sum(policy.entropy(p) + policy.kl_divergence(p, tf.stop_gradient(p)))
        loss += tf.reduce_sum(policy.log_prob(p, tf.zeros(len(MASK), tf.int32)))
    gradient = tape.gradient(loss, logits).numpy()
    assert np.isfinite(gradient).all() and (gradient[MASK == 0] == 0).all()


def test_a_mask_of_zeros_masks_nothing() -> None:
    np.testing.assert_array_equal(masked(tf.constant(LOGITS), tf.zeros((40, 5))), LOGITS)
