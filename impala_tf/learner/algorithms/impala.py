"""IMPALA's losses (paper, section 4.2), summed over time and batch (appendix D.1)."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from impala_tf.config import LossConfig, resolved
from impala_tf.learner import vtrace
from impala_tf.types import AgentOutput, EnvOutput, NetworkOutput


class Losses(NamedTuple):
    """Scalars, float32. `total` is minimised; the others are not weighted by their costs."""

    total: tf.Tensor
    policy_gradient: tf.Tensor  # sum of -log pi(a|x) * pg_advantage
    baseline: tf.Tensor  # sum of (vs - V(x))^2 / 2
    entropy: tf.Tensor  # mean entropy of pi, in nats, over the valid steps
    rho_clip_fraction: tf.Tensor  # fraction of the steps with pi/mu above rho-bar
    c_clip_fraction: tf.Tensor  # fraction of the steps with pi/mu above c-bar


def compute(
    network_outputs: NetworkOutput,
    env_outputs: EnvOutput,
    agent_outputs: AgentOutput,
    config: LossConfig,
) -> Losses:
    """Returns the losses of a batch of unrolls.

    Args:
      network_outputs: with the learner's parameters, [T + 1, B].
      env_outputs: [T + 1, B]; only rewards and episode ends are read.
      agent_outputs: of the actors, [T, B].
      config: costs, clips, discount; resolved.
    """
    # Here [T + 1] becomes [T]. Action t was chosen at x_t; its reward and what followed are in
    # EnvOutput t + 1. Before: index t of env_outputs is a step. After: index t is the transition
    # from step t to step t + 1, and the last network output is only used to bootstrap.
    rewards = clip_rewards(env_outputs.reward[1:], config.reward_clipping)
    discounts = config.discounting * (1.0 - tf.cast(env_outputs.terminated[1:], tf.float32))
    valid = tf.logical_not(env_outputs.autoreset[1:])
    logits, values = network_outputs.policy_logits[:-1], network_outputs.baseline[:-1]

    returns = vtrace.from_logits(
        behaviour_policy_logits=agent_outputs.policy_logits,
        target_policy_logits=logits,
        actions=agent_outputs.action,
        discounts=discounts,
        rewards=rewards,
        values=values,
        bootstrap_value=network_outputs.baseline[-1],
        mask=valid,
        clip_rho_threshold=config.clip_rho_threshold,
        clip_pg_rho_threshold=config.clip_pg_rho_threshold,
        clip_c_threshold=config.clip_c_threshold,
        lambda_=config.vtrace_lambda,
    )
    weight = tf.cast(valid, tf.float32)
    steps = tf.maximum(tf.reduce_sum(weight), 1.0)
    policy_gradient = -tf.reduce_sum(
        weight * returns.target_action_log_probs * returns.pg_advantages
    )
    baseline = 0.5 * tf.reduce_sum(weight * tf.square(returns.vs - values))
    entropy = tf.reduce_sum(weight * policy_entropy(logits))
    total = (
        policy_gradient
        + resolved(config.baseline_cost) * baseline
        - resolved(config.entropy_cost) * entropy
    )
    return Losses(
        total=total,
        policy_gradient=policy_gradient,
        baseline=baseline,
        entropy=entropy / steps,
        rho_clip_fraction=_fraction_above(
            returns.log_rhos, config.clip_rho_threshold, weight, steps
        ),
        c_clip_fraction=_fraction_above(returns.log_rhos, config.clip_c_threshold, weight, steps),
    )


def policy_entropy(policy_logits: tf.Tensor) -> tf.Tensor:
    """Returns the entropy in nats, float32 [T, B], of softmax policies [T, B, A]."""
    log_policy = tf.nn.log_softmax(policy_logits)
    return -tf.reduce_sum(tf.exp(log_policy) * log_policy, axis=-1)


def clip_rewards(rewards: tf.Tensor, clipping: str) -> tf.Tensor:
    """Returns the rewards that the loss uses (paper, section 5.3.2 and figure D.1).

    Raises:
      ValueError: `clipping` is not one of abs_one, soft_asymmetric, none.
    """
    if clipping == "abs_one":
        return tf.clip_by_value(rewards, -1.0, 1.0)
    if clipping == "soft_asymmetric":
        squeezed = tf.tanh(rewards / 5.0)
        return tf.where(rewards < 0.0, 0.3 * squeezed, squeezed) * 5.0
    if clipping == "none":
        return rewards
    raise ValueError(f"unknown reward clipping {clipping!r}")


def _fraction_above(
    log_rhos: tf.Tensor, threshold: float, weight: tf.Tensor, steps: tf.Tensor
) -> tf.Tensor:
    above = tf.cast(tf.exp(log_rhos) > threshold, tf.float32)
    return tf.reduce_sum(weight * above) / steps
