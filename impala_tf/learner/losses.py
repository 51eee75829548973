"""The loss of a batch, whose terms an algorithm defines (paper, section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from impala_tf.agents.n_step_returns import clip_rewards
from impala_tf.config import LossConfig, algorithm
from impala_tf.lazy import tf  # records of algorithms are read without it
from impala_tf.learner import vtrace
from impala_tf.types import AgentOutput, EnvOutput

if TYPE_CHECKING:
    from impala_tf.agents.distributions import Distribution


class Transitions(NamedTuple):
    """The transitions of a batch, time-major. Index t is the transition from step t to t + 1."""

    rewards: tf.Tensor  # float32 [T, B]: clipped by --reward_clipping
    discounts: tf.Tensor  # float32 [T, B]: gamma, or 0 where the episode terminated
    valid: tf.Tensor  # bool [T, B]: False where the environment was reset instead of stepped
    entropy: tf.Tensor  # float32 [T, B]: of pi in nats, gradients flow
    kl: tf.Tensor  # float32 [T, B]: KL(mu || pi) in nats; mu is the behaviour policy
    log_probs: tf.Tensor  # float32 [T, B]: log pi(a|x), gradients flow
    behaviour_log_probs: tf.Tensor  # float32 [T, B]: log mu(a|x)
    values: tf.Tensor  # float32 [T, B]: V(x_t) in units of the rewards, gradients flow
    bootstrap_value: tf.Tensor  # float32 [B]: V(x_T)


class Estimates(NamedTuple):
    """An algorithm's estimates. Gradients do not flow through any field."""

    advantages: tf.Tensor  # float32 [T, B]: weights of the policy gradient, before scaling
    value_targets: tf.Tensor  # float32 [T, B], in units of the rewards
    # float32 [T, B]: the clipped pi / mu by which the advantages are already multiplied; 1 if none
    importance: tf.Tensor | float = 1.0


class Objective(NamedTuple):
    """The objective that the policy maximises."""

    values: tf.Tensor  # float32 [T, B], gradients flow
    clipped: tf.Tensor  # bool [T, B]: where the ratio was clipped, so that no gradient flows


class Scales(NamedTuple):
    """Running statistics and schedules that the loss depends on; float32 scalars."""

    entropy_cost: tf.Tensor | float
    advantage_rms: tf.Tensor | float = 1.0  # advantages are divided by it if scaled by "rms"
    advantage_unit: tf.Tensor | float = 1.0  # advantages are first divided by it; scalar or [B]
    value_std: tf.Tensor | float = 1.0  # value errors are divided by it; scalar or [B]
    # Subtracted from value targets before they are summed, so that float32 does not lose digits.
    value_mean: tf.Tensor | float = 0.0  # scalar or [B]


class Losses(NamedTuple):
    """Float32 scalars, except for the last two. `total` is minimised.

    The single losses are not weighted by their costs. They are sums over time and batch, or means,
    as --loss_reduction says. The fields of a batch's parts add up to those of the whole batch if
    each part is given the batch's number of valid steps.
    """

    total: tf.Tensor
    policy_gradient: tf.Tensor  # minus the policy's objective
    baseline: tf.Tensor  # half the squared error of V(x), divided by the scale's value_std
    entropy: tf.Tensor  # mean entropy of pi, in nats, over the valid steps
    kl: tf.Tensor  # mean KL(mu || pi) in nats; mu is the behaviour policy
    rho_clip_fraction: tf.Tensor  # fraction of the steps with pi/mu above rho-bar
    c_clip_fraction: tf.Tensor  # fraction of the steps with pi/mu above c-bar
    surrogate_clip_fraction: tf.Tensor  # fraction of the steps without a policy gradient
    value_error: tf.Tensor  # mean squared difference of value targets and V(x), in value_std units
    steps: tf.Tensor  # number of valid steps
    squared_advantages: tf.Tensor  # sum over the valid steps, in advantage_unit units
    # The count of value targets, the sum of their differences from value_mean, and the sum of the
    # squared differences.
    value_sums: tf.Tensor  # float32 [3, B]
    target_sums: tf.Tensor  # float32 [3, B]: likewise, in value_std units


def compute(
    steps: Transitions,
    config: LossConfig,
    scales: Scales,
    prepared: Estimates | None = None,
    valid_steps: tf.Tensor | None = None,
) -> Losses:
    """Returns the losses of a batch, or of a part of it.

    Args:
      steps: the transitions, [T, B].
      config: the loss's flags, which name the algorithm.
      scales: running statistics and schedules.
      prepared: the estimates [T, B] from before the batch's first gradient step, for an algorithm
        that estimates only once per batch.
      valid_steps: the whole batch's number of valid steps, float32 []; None: `steps` is the whole
        batch.
    """
    weight = tf.cast(steps.valid, tf.float32)
    own_steps = tf.reduce_sum(weight)
    count = tf.maximum(own_steps if valid_steps is None else valid_steps, 1.0)

    def mean(tensor: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(weight * tf.cast(tensor, tf.float32)) / count

    record = algorithm(config.algorithm)
    assert record.estimate is not None and record.objective is not None
    estimates = record.estimate(steps, config) if prepared is None else prepared
    unscaled = estimates.advantages / scales.advantage_unit
    advantages = _scaled(
        unscaled, weight, config.advantage_scaling, scales.advantage_rms, estimates.importance
    )
    objective = record.objective(steps, advantages, config)
    targets = estimates.value_targets
    errors = tf.square(targets / scales.value_std - steps.values / scales.value_std)
    reduction = count if config.loss_reduction == "mean" else 1.0
    policy_gradient = -tf.reduce_sum(weight * objective.values) / reduction
    baseline = 0.5 * tf.reduce_sum(weight * errors) / reduction
    entropies = tf.reduce_sum(weight * steps.entropy)
    total = (
        policy_gradient
        + config.baseline_cost * baseline
        - scales.entropy_cost * entropies / reduction
    )
    ratios = tf.exp(steps.log_probs - steps.behaviour_log_probs)
    return Losses(
        total=total,
        policy_gradient=policy_gradient,
        baseline=baseline,
        entropy=entropies / count,
        kl=mean(steps.kl),
        rho_clip_fraction=mean(ratios > vtrace.RHO_BAR),
        c_clip_fraction=mean(ratios > vtrace.C_BAR),
        surrogate_clip_fraction=mean(objective.clipped),
        value_error=mean(tf.square((targets - steps.values) / scales.value_std)),
        steps=own_steps,
        squared_advantages=tf.reduce_sum(weight * tf.square(unscaled)),
        value_sums=_sums(weight, targets - scales.value_mean),
        target_sums=_sums(weight, (targets - scales.value_mean) / scales.value_std),
    )


def _sums(weight: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns count, sum and sum of squares over time: [T, B] to float32 [3, B]."""
    return tf.reduce_sum(
        weight * tf.stack([tf.ones_like(weight), values, tf.square(values)]), axis=1
    )


def explained_variance(value_error: tf.Tensor, target_sums: tf.Tensor) -> tf.Tensor:
    """Returns the fraction of the value targets' variance that V(x) explains; 1 is perfect.

    Only the variance within each level counts, so one constant per level explains nothing.

    Args:
      value_error: `Losses.value_error`.
      target_sums: `Losses.target_sums`, summed by level: float32 [3, levels].

    Returns:
      float32 [].
    """
    count, total, squares = tf.unstack(target_sums)
    deviations = tf.reduce_sum(squares - tf.math.divide_no_nan(tf.square(total), count))
    variance = deviations / tf.maximum(tf.reduce_sum(count), 1.0)
    return 1.0 - value_error / tf.maximum(variance, 1e-8)


def _scaled(
    advantages: tf.Tensor,
    weight: tf.Tensor,
    scaling: str,
    rms: tf.Tensor | float,
    importance: tf.Tensor | float = 1.0,
) -> tf.Tensor:
    """Returns the advantages [T, B], scaled as --advantage_scaling says.

    With "batch", rho A becomes rho (A - b), where b makes the mean over the batch 0. A constant b
    does not change the expected gradient, because rho grad log pi has mean 0 under mu. Subtracting
    the mean of rho A instead would push pi away from mu, or back towards it.
    """
    if scaling == "rms":
        return advantages / rms
    if scaling == "batch":
        count = tf.maximum(tf.reduce_sum(weight), 1.0)
        mean = tf.math.divide_no_nan(
            tf.reduce_sum(weight * advantages), tf.reduce_sum(weight * importance)
        )
        centered = advantages - importance * mean
        std = tf.sqrt(tf.reduce_sum(weight * tf.square(centered)) / count)
        return centered / (std + 1e-8)
    return advantages


def transitions(
    policy_logits: tf.Tensor,
    values: tf.Tensor,
    env_outputs: EnvOutput,
    agent_outputs: AgentOutput,
    config: LossConfig,
    distribution: Distribution,
) -> Transitions:
    """Returns the transitions of a batch of unrolls.

    Args:
      policy_logits: float32 [T + 1, B, P], computed with the learner's parameters.
      values: float32 [T + 1, B], the baseline for each unroll's level.
      env_outputs: [T + 1, B, ...]; only rewards, episode ends and resets are read.
      agent_outputs: [T, B, ...], the actors' answers.
      config: the loss's flags: the discount and the clipping of rewards.
      distribution: the distribution that the logits parametrise.
    """
    # Here [T + 1] becomes [T]. Action t was chosen at x_t, and its consequences are in EnvOutput
    # t + 1. So far, index t of env_outputs is a step. From here on, index t is the transition from
    # step t to step t + 1, and the last network output is only used for bootstrapping.
    logits = policy_logits[:-1]
    behaviour_logits, actions = agent_outputs.policy_logits, agent_outputs.action
    return Transitions(
        rewards=clip_rewards(env_outputs.reward[1:], config.reward_clipping, tf),
        discounts=config.discounting * (1.0 - tf.cast(env_outputs.terminated[1:], tf.float32)),
        valid=tf.logical_not(env_outputs.autoreset[1:]),
        entropy=distribution.entropy(logits),
        kl=distribution.kl_divergence(behaviour_logits, logits),
        log_probs=distribution.log_prob(logits, actions),
        behaviour_log_probs=distribution.log_prob(behaviour_logits, actions),
        values=values[:-1],
        bootstrap_value=values[-1],
    )
