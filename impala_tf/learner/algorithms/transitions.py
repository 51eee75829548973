"""A batch as the algorithms see it: one entry per transition, time-major."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from impala_tf.agents.distributions import Distribution
from impala_tf.config import LossConfig
from impala_tf.types import AgentOutput, EnvOutput, NetworkOutput


class Transitions(NamedTuple):
    """Index t is the transition from step t to step t + 1."""

    rewards: tf.Tensor  # float32 [T, B]: clipped as --reward_clipping says
    discounts: tf.Tensor  # float32 [T, B]: gamma, or 0 where the episode ended
    valid: tf.Tensor  # bool [T, B]: False where the environment was reset instead
    entropy: tf.Tensor  # float32 [T, B]: of pi in nats, gradients flow
    kl: tf.Tensor  # float32 [T, B]: of pi from mu, the policy that acted, in nats
    log_probs: tf.Tensor  # float32 [T, B]: log pi(a|x), gradients flow
    behaviour_log_probs: tf.Tensor  # float32 [T, B]: log mu(a|x)
    values: tf.Tensor  # float32 [T, B]: V(x_t) in units of the rewards, gradients flow
    bootstrap_value: tf.Tensor  # float32 [B]: V(x_T)


class Estimates(NamedTuple):
    """What an algorithm learns from. Gradients do not flow through either field."""

    advantages: tf.Tensor  # float32 [T, B]: weights of the policy gradient, not scaled
    value_targets: tf.Tensor  # float32 [T, B], in units of the rewards


class Objective(NamedTuple):
    """What the policy maximises."""

    values: tf.Tensor  # float32 [T, B], gradients flow
    clipped: tf.Tensor  # bool [T, B]: where the ratio was clipped, so that no gradient flows


def transitions(
    network_outputs: NetworkOutput,
    values: tf.Tensor,
    env_outputs: EnvOutput,
    agent_outputs: AgentOutput,
    config: LossConfig,
    distribution: Distribution,
) -> Transitions:
    """Returns the transitions of a batch of unrolls.

    Args:
      network_outputs: with the learner's parameters, [T + 1, B].
      values: the baseline in units of the rewards, [T + 1, B].
      env_outputs: [T + 1, B]; only rewards and episode ends are read.
      agent_outputs: of the actors, [T, B].
      config: resolved.
      distribution: of the policies.
    """
    # Here [T + 1] becomes [T]. Action t was chosen at x_t; its reward and what followed are in
    # EnvOutput t + 1. Before: index t of env_outputs is a step. After: index t is the transition
    # from step t to step t + 1, and the last network output is only used to bootstrap.
    logits = network_outputs.policy_logits[:-1]
    behaviour_logits, actions = agent_outputs.policy_logits, agent_outputs.action
    return Transitions(
        rewards=clip_rewards(env_outputs.reward[1:], config.reward_clipping),
        discounts=config.discounting * (1.0 - tf.cast(env_outputs.terminated[1:], tf.float32)),
        valid=tf.logical_not(env_outputs.autoreset[1:]),
        entropy=distribution.entropy(logits),
        kl=distribution.kl_divergence(behaviour_logits, logits),
        log_probs=distribution.log_prob(logits, actions),
        behaviour_log_probs=distribution.log_prob(behaviour_logits, actions),
        values=values[:-1],
        bootstrap_value=values[-1],
    )


def clip_rewards(rewards: tf.Tensor, clipping: str) -> tf.Tensor:
    """Returns `returns.clip_rewards` of tensors.

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
