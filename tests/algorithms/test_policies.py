"""appo and ppo compared with slow transcriptions of their papers' formulas in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.distributions import Categorical
from impala_tf.algorithms import appo, impala, ppo
from impala_tf.config import LossConfig
from impala_tf.learner import losses
from impala_tf.learner.losses import Scales, Transitions
from tests.helpers.formulas import paper_advantages, paper_vs
from tests.helpers.losses import loss_config

T, B, A = 7, 3, 4
Floats = np.ndarray[Any, np.dtype[np.float64]]


def transitions(seed: int = 0, spread: float = 1.0) -> Transitions:
    """Returns random transitions with ends and resets; the policies differ by `spread`."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, A, (T, B))
    behaviour = rng.normal(size=(T, B, A))
    logits = behaviour + spread * rng.normal(size=(T, B, A))
    discounts = np.full((T, B), 0.9)
    valid = np.ones((T, B), bool)
    discounts[2, 0] = 0.0  # terminated, then reset
    valid[3, 0] = valid[5, 1] = False  # step 4 of column 1 was truncated

    def log_probs(logits: Floats) -> Floats:
        log_policy = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return np.take_along_axis(log_policy, actions[..., None], -1)[..., 0]

    arrays = Transitions(
        rewards=rng.normal(size=(T, B)),
        discounts=discounts,
        valid=valid,
        entropy=Categorical(A).entropy(tf.constant(logits)).numpy(),
        kl=Categorical(A).kl_divergence(tf.constant(behaviour), tf.constant(logits)).numpy(),
        log_probs=log_probs(logits),
        behaviour_log_probs=log_probs(behaviour),
        values=rng.normal(size=(T, B)),
        bootstrap_value=rng.normal(size=B),
    )
    return Transitions(
        *(tf.constant(a if a.dtype == bool else a.astype(np.float32)) for a in arrays)
    )


def gae(steps: Transitions, lambda_: float) -> Floats:
    """Equation 16 of arXiv 1506.02438, as a double loop over the sums of equation 11."""
    advantages = np.zeros((T, B))
    values = np.concatenate([steps.values, steps.bootstrap_value[None]])
    for b in range(B):
        for t in range(T):
            factor = 1.0
            for later in range(t, T):
                if not steps.valid[later, b]:
                    break
                discount = float(steps.discounts[later, b])
                delta = float(steps.rewards[later, b]) + discount * values[later + 1, b]
                advantages[t, b] += factor * (delta - values[later, b])
                factor *= discount * lambda_
    return advantages


def surrogate(ratio: float, advantage: float, epsilon: float) -> float:
    """Equation 7 of arXiv 1707.06347."""
    return min(ratio * advantage, max(min(ratio, 1 + epsilon), 1 - epsilon) * advantage)


def objective_of(steps: Transitions, compute: Any) -> tuple[Floats, Floats]:
    """Returns the objective, and the gradient of its sum with respect to log pi(a|x)."""
    with tf.GradientTape() as tape:
        tape.watch(steps.log_probs)
        values = compute(steps).values
        total = tf.reduce_sum(values)
    return values.numpy(), tape.gradient(total, steps.log_probs).numpy()


def test_gae_equals_its_sum() -> None:
    steps = transitions()
    found = ppo.estimate(steps, loss_config(trace_lambda=0.8))
    expected = gae(steps, 0.8)
    np.testing.assert_allclose(found.advantages, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.value_targets, expected + steps.values, rtol=1e-4, atol=1e-5)


def test_the_ppo_objective_equals_its_formula_and_has_its_gradient() -> None:
    steps = transitions(1)
    advantages = tf.constant(np.random.default_rng(2).normal(size=(T, B)), tf.float32)
    config = loss_config(surrogate_clipping=0.2)
    values, gradient = objective_of(steps, lambda s: ppo.objective(s, advantages, config))
    ratios = np.exp(steps.log_probs.numpy() - steps.behaviour_log_probs.numpy())
    for t, b in np.ndindex(T, B):
        ratio, advantage = float(ratios[t, b]), float(advantages[t, b])
        expected = surrogate(ratio, advantage, 0.2)
        assert values[t, b] == pytest.approx(expected, rel=1e-4)
        # d ratio / d log pi = ratio
        moved = surrogate(ratio * 1.0001, advantage, 0.2)
        assert gradient[t, b] == pytest.approx((moved - expected) / 1e-4, rel=1e-2)
    assert (gradient == 0).any() and (gradient != 0).any()


def vtrace_advantages(steps: Transitions) -> Floats:
    """The formulas of V-trace, where a step into a reset has the ratio 0."""
    log_rhos = np.where(steps.valid, steps.log_probs - steps.behaviour_log_probs, -np.inf)
    named = (steps.discounts, steps.rewards, steps.values, steps.bootstrap_value)
    discounts, rewards, values, bootstrap = (np.asarray(each, np.float64) for each in named)
    common = (log_rhos, discounts, rewards, values, bootstrap)
    found: Floats = paper_advantages(*common, paper_vs(*common, 1.0, 1.0, 1.0), 1.0)
    return found


def appo_objective(steps: Transitions, config: LossConfig) -> tuple[Floats, Floats]:
    found = impala.estimate(steps, config)
    return objective_of(steps, lambda s: appo.objective(s, found.advantages, config))


def test_the_appo_objective_is_the_surrogate_of_v_trace() -> None:
    """min(r A, clip(r) A), r = pi / mu, with A weighted by min(1, r) / r as V-trace's is."""
    steps = transitions(4)
    config = loss_config(algorithm="appo", surrogate_clipping=0.3)
    values, _ = appo_objective(steps, config)
    ratios = np.exp(steps.log_probs.numpy() - steps.behaviour_log_probs.numpy())
    advantages = vtrace_advantages(steps) / ratios
    for t, b in np.ndindex(T, B):
        expected = surrogate(ratios[t, b], advantages[t, b], 0.3)
        assert values[t, b] == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_ratios_stay_finite_for_very_different_policies() -> None:
    """One infinite ratio would make every parameter NaN."""
    steps = transitions(7, spread=200.0)
    config = loss_config(algorithm="appo", surrogate_clipping=0.2)
    assert all(np.isfinite(each).all() for each in appo_objective(steps, config))


def compute(steps: Transitions, scales: Scales | None = None, **flags: Any) -> losses.Losses:
    config = loss_config(**{"entropy_cost": 0.02, **flags})
    found = ppo.estimate(steps, config)
    prepared = found if config.algorithm == "ppo" else None
    return losses.compute(steps, config, scales or Scales(0.02), prepared)


@pytest.mark.parametrize("algorithm", ["impala", "appo", "ppo"])
def test_means_are_the_sums_divided_by_the_valid_steps(algorithm: str) -> None:
    """With means, the learning rate does not depend on the size of a batch."""
    steps = transitions()
    summed = compute(steps, algorithm=algorithm)
    mean = compute(steps, algorithm=algorithm, loss_reduction="mean")
    count = T * B - 2
    for name in ("total", "policy_gradient", "baseline"):
        expected = getattr(summed, name) / count
        np.testing.assert_allclose(getattr(mean, name), expected, rtol=1e-5)
    assert mean.steps == summed.steps == count
    np.testing.assert_allclose(mean.entropy, summed.entropy)


@pytest.mark.parametrize("name", ["impala", "appo"])
def test_scaling_by_the_batch_has_the_gradient_of_its_formula(name: str) -> None:
    """Of advantages A that V-trace weights by rho: rho (A - sum(rho A) / sum(rho)) / std."""
    steps = transitions(4)
    valid = steps.valid.numpy()
    ratios = np.exp(steps.log_probs.numpy() - steps.behaviour_log_probs.numpy())
    rhos = np.minimum(ratios, 1.0)
    weighted = vtrace_advantages(steps)
    mean = weighted[valid].sum() / rhos[valid].sum()
    expected = np.where(valid, weighted - rhos * mean, 0.0)
    expected /= np.sqrt(np.mean(expected[valid] ** 2))
    found = policy_gradient(steps, algorithm=name, surrogate_clipping=0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def policy_gradient(steps: Transitions, **flags: Any) -> Floats:
    """Returns the gradient of the policy's objective with respect to log pi(a|x), [T, B]."""
    config = loss_config(advantage_scaling="batch", loss_reduction="sum", **flags)
    with tf.GradientTape() as tape:
        tape.watch(steps.log_probs)
        loss = losses.compute(steps, config, Scales(0.0)).policy_gradient
    return -tape.gradient(loss, steps.log_probs).numpy()


def test_kl_and_explained_variance_are_what_their_names_say() -> None:
    steps = transitions()
    found = compute(steps)
    valid = steps.valid.numpy()
    np.testing.assert_allclose(found.kl, steps.kl.numpy()[valid].mean(), rtol=1e-4)
    targets = impala.estimate(steps, loss_config()).value_targets.numpy()[valid]
    error = np.mean((targets - steps.values.numpy()[valid]) ** 2)
    sums = tf.reduce_sum(found.target_sums, axis=1, keepdims=True)  # of one level
    explained = losses.explained_variance(found.value_error, sums)
    np.testing.assert_allclose(explained, 1 - error / targets.var(), rtol=1e-3, atol=1e-4)
