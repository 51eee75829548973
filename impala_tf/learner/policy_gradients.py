"""The gradients of a policy and its baseline: what a batch of unrolls teaches."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from impala_tf.agents import inputs
from impala_tf.agents.agent import Agent
from impala_tf.config import Config
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner.algorithms import losses, ppo
from impala_tf.learner.algorithms.losses import Losses, Scales
from impala_tf.learner.algorithms.transitions import Estimates, Transitions, transitions
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradients import dense_gradients
from impala_tf.learner.statistics import RunningMoments, ValueNormalizer
from impala_tf.types import Nest, NetworkOutput, Unroll


class PolicyStats(NamedTuple):
    """Statistics of one gradient step; float32 scalars. Losses are as --loss_reduction says."""

    loss_total: tf.Tensor
    loss_policy_gradient: tf.Tensor
    loss_baseline: tf.Tensor
    entropy: tf.Tensor  # nats, mean over steps
    kl: tf.Tensor  # nats, mean over steps: from the policy that acted
    explained_variance: tf.Tensor  # of the value targets
    advantage_rms: tf.Tensor  # before scaling
    rho_clip_fraction: tf.Tensor
    c_clip_fraction: tf.Tensor
    surrogate_clip_fraction: tf.Tensor
    gradient_norm: tf.Tensor  # global norm before clipping
    policy_lag_mean: tf.Tensor  # learner updates since the acting parameters, mean over the batch
    policy_lag_max: tf.Tensor


class Learned(NamedTuple):
    """What a batch, or a part of one, adds to a step."""

    gradients: list[tf.Tensor]
    loss: Losses  # value_sums: [3], or [3, levels]


class PolicyGradients:
    """Computes gradients; changes nothing.

    Args:
      agent: the network.
      layout: of the level's observations.
      config: resolved.
      entropy_cost: of the next gradients; may be a variable.
      target_agent: appo's target network, if there is one.
      advantages: running moments of the advantages, if they are scaled by them.
      values: of a network that predicts normalised values.
    """

    def __init__(
        self,
        agent: Agent,
        layout: ObservationLayout,
        config: Config,
        entropy_cost: tf.Variable | float,
        target_agent: Agent | None = None,
        advantages: RunningMoments | None = None,
        values: ValueNormalizer | None = None,
    ) -> None:
        self._agent = agent
        self._layout = layout
        self._config = config
        self._entropy_cost = entropy_cost
        self._target_agent = target_agent
        self._advantages = advantages
        self._values = values

    def of_batch(self, minibatch: Minibatch) -> Learned:
        """Returns gradients and losses of a batch.

        It is split into --micro_batches parts, so that only one part's activations are in memory at
        a time.

        Args:
          minibatch: what to learn from.
        """
        batch_size = minibatch.unrolls.parameter_version.shape[0]
        parts = self._config.optimizer.micro_batches
        if parts == 1 or batch_size is None or batch_size % parts:
            return self._learned(minibatch, None)
        split = tf.nest.map_structure(
            lambda t: tf.reshape(t, (parts, batch_size // parts, *t.shape[1:])), minibatch
        )
        # The first step of an unroll is not the result of a decision in it.
        was_reset = minibatch.unrolls.env_outputs.autoreset[:, 1:]
        valid_steps = tf.reduce_sum(tf.cast(tf.logical_not(was_reset), tf.float32))

        def add(part: tf.Tensor, before: Learned) -> tuple[tf.Tensor, Learned]:
            chosen = tf.nest.map_structure(lambda t: t[part], split)
            found = self._learned(chosen, valid_steps)
            return part + 1, tf.nest.map_structure(tf.add, before, found)

        start = (tf.constant(0), self._zeros())
        _, learned = tf.while_loop(lambda part, _: part < parts, add, start, parallel_iterations=1)
        return learned

    def _zeros(self) -> Learned:
        gradients = [tf.zeros_like(each) for each in self._agent.trainable_variables]
        zeros = Losses(*[tf.constant(0.0)] * len(Losses._fields))
        shape = (3, self._agent.num_levels) if self._agent.num_levels else (3,)
        loss = zeros._replace(value_sums=tf.zeros(shape), target_sums=tf.zeros((3,)))
        return Learned(gradients, loss)

    def prepare(self, batch: Unroll) -> Nest:
        """Returns ppo's estimates and values of a whole batch, float32 [B, T] each."""
        unroll = time_major(batch, self._layout)
        outputs, _ = self._agent.unroll(unroll.env_outputs, unroll.core_state)
        steps = self._transitions(outputs, unroll)
        found = ppo.estimate(steps, self._config.loss)
        return tuple(map(tf.transpose, (*found, steps.values)))

    def _learned(self, minibatch: Minibatch, valid_steps: tf.Tensor | None) -> Learned:
        """Returns gradients and losses of a batch, or of a part of it."""
        unroll = time_major(minibatch.unrolls, self._layout)
        with tf.GradientTape() as tape:
            outputs, _ = self._agent.unroll(unroll.env_outputs, unroll.core_state)
            loss = losses.compute(
                self._transitions(outputs, unroll),
                self._config.loss,
                self._scales(unroll.level),
                self._target_log_probs(unroll),
                _prepared(minibatch),
                valid_steps,
            )
        gradients = dense_gradients(tape, loss.total, self._agent.trainable_variables)
        loss = loss._replace(value_sums=self._by_level(loss.value_sums, unroll.level))
        return Learned(gradients, loss)

    def _transitions(self, outputs: NetworkOutput, unroll: Unroll) -> Transitions:
        values = outputs.baseline if self._values is None else self._values.values(outputs.baseline)
        values = self._of_level(values, unroll.level)
        return transitions(
            outputs,
            values,
            unroll.env_outputs,
            unroll.agent_outputs,
            self._config.loss,
            self._agent.distribution,
        )

    def _of_level(self, of_all: tf.Tensor, level: Nest) -> tf.Tensor:
        """Picks the own level's [..., B] out of [..., B, levels]; one level: nothing to pick."""
        if not self._agent.num_levels:
            return of_all
        return tf.reduce_sum(of_all * tf.one_hot(level, self._agent.num_levels), axis=-1)

    def _by_level(self, sums: tf.Tensor, level: Nest) -> tf.Tensor:
        """Adds up [..., B] over the batch: [..., levels], or [...] if there is one level."""
        if not self._agent.num_levels:
            return tf.reduce_sum(sums, axis=-1)
        return tf.matmul(sums, tf.one_hot(level, self._agent.num_levels))

    def _scales(self, level: Nest) -> Scales:
        scales = Scales(
            entropy_cost=self._entropy_cost,
            advantage_rms=1.0 if self._advantages is None else self._advantages.rms,
        )
        if self._values is None:
            return scales
        return scales._replace(
            value_std=self._of_level(self._values.std, level),
            value_mean=self._of_level(self._values.mean, level),
            value_center=tf.reduce_mean(self._values.mean),
        )

    def _target_log_probs(self, unroll: Unroll) -> tf.Tensor | None:
        if self._target_agent is None:
            return None
        outputs, _ = self._target_agent.unroll(unroll.env_outputs, unroll.core_state)
        return self._agent.distribution.log_prob(
            outputs.policy_logits[:-1], unroll.agent_outputs.action
        )


def time_major(batch: Unroll, layout: ObservationLayout) -> Unroll:
    """Returns a batch [B, T, ...] as [T, B, ...], its observations as the network sees them."""
    return batch._replace(
        env_outputs=inputs.time_major(layout, batch.env_outputs),
        agent_outputs=tf.nest.map_structure(inputs.swap_batch_and_time, batch.agent_outputs),
    )


def _prepared(minibatch: Minibatch) -> tuple[Estimates, tf.Tensor] | None:
    if not minibatch.prepared:
        return None
    advantages, value_targets, values = map(tf.transpose, minibatch.prepared)
    return Estimates(advantages, value_targets), values


def policy_stats(loss: Losses, gradient_norm: tf.Tensor, lag: tf.Tensor) -> PolicyStats:
    """Returns the statistics of a gradient step.

    Args:
      loss: of its batch.
      gradient_norm: before clipping.
      lag: float32 [B], learner updates since the acting parameters.
    """
    return PolicyStats(
        loss_total=loss.total,
        loss_policy_gradient=loss.policy_gradient,
        loss_baseline=loss.baseline,
        entropy=loss.entropy,
        kl=loss.kl,
        explained_variance=losses.explained_variance(loss.value_error, loss.target_sums),
        advantage_rms=tf.sqrt(loss.squared_advantages / tf.maximum(loss.steps, 1.0)),
        rho_clip_fraction=loss.rho_clip_fraction,
        c_clip_fraction=loss.c_clip_fraction,
        surrogate_clip_fraction=loss.surrogate_clip_fraction,
        gradient_norm=gradient_norm,
        policy_lag_mean=tf.reduce_mean(lag),
        policy_lag_max=tf.reduce_max(lag),
    )
