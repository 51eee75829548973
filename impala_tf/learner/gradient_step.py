"""One gradient step: forward pass, loss, mean gradient of all learners, optimizer, statistics."""

from __future__ import annotations

import copy
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.config import Config, resolved
from impala_tf.environments.observations import ObservationLayout, swap_batch_and_time
from impala_tf.learner import signals
from impala_tf.learner.algorithms import losses, ppo
from impala_tf.learner.algorithms.losses import Losses, Scales
from impala_tf.learner.algorithms.transitions import Estimates, Transitions, transitions
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.optimizers import make_optimizer
from impala_tf.learner.statistics import (
    RunningMoments,
    ValueNormalizer,
    observation_statistics,
)
from impala_tf.types import Nest, NetworkOutput, Unroll

# Decay of the running mean square of the advantages, per update.
_ADVANTAGE_DECAY = 0.99


class StepStats(NamedTuple):
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


class _Sums(NamedTuple):
    """What learners exchange for their statistics, besides gradients; summed over all learners."""

    steps: tf.Tensor
    squared_advantages: tf.Tensor
    kl: tf.Tensor  # times steps


class GradientStep:
    """The compiled steps of one learner, and all variables that they change.

    Args:
      agent: the network, its variables made.
      layout: of the level's observations.
      config: resolved.
      group: the learners whose gradients are averaged.

    Attributes:
      learning_rate, entropy_cost: read by every step.
      optimizer: with its slots.
      target_agent: appo's target network; None: it has none.
    """

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        self.agent = agent
        self._layout = layout
        self._config = config
        self._group = group
        self.learning_rate = tf.Variable(0.0, trainable=False, name="learning_rate")
        self.entropy_cost = tf.Variable(0.0, trainable=False, name="entropy_cost")
        self.optimizer = make_optimizer(
            config.optimizer, self.learning_rate, agent.trainable_variables
        )
        loss = config.loss
        has_target = loss.algorithm == "appo" and loss.target_update_interval > 0
        self.target_agent = copy.deepcopy(agent) if has_target else None
        self._advantages = (
            RunningMoments(_ADVANTAGE_DECAY) if loss.advantage_scaling == "rms" else None
        )
        normalizes = loss.value_normalization == "running"
        self._values = ValueNormalizer(agent.num_levels) if normalizes else None
        self._observations = observation_statistics(agent.observation_normalizer)
        self.with_batch = tf.function(self._with_batch, autograph=False)
        self.without_batch = tf.function(self._without_batch, autograph=False)
        self.prepare = tf.function(self._prepare, autograph=False)

    def trackables(self) -> dict[str, snt.Module]:
        """Returns what a checkpoint holds, by name."""
        everything = {
            "agent": self.agent,
            "optimizer": self.optimizer,
            "target_agent": self.target_agent,
            "advantage_moments": self._advantages,
            "value_normalizer": self._values,
            "observation_statistics": self._observations,
        }
        return {name: part for name, part in everything.items() if part is not None}

    def update_target(self) -> None:
        """Makes appo's target network a copy of the network."""
        if self.target_agent is not None:
            for target, variable in zip(
                self.target_agent.variables, self.agent.variables, strict=True
            ):
                target.assign(variable)

    def _with_batch(
        self,
        minibatch: Minibatch,
        parameter_version: tf.Tensor,
        own_signals: tf.Tensor,
        observe: bool,
    ) -> tuple[StepStats, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Takes a step with a batch.

        Args:
          minibatch: what to learn from.
          parameter_version: of the parameters before the step, int64.
          own_signals: of this learner; see `signals`.
          observe: whether the observations are added to their statistics.

        Returns:
          statistics, the sum of all learners' signals, their mean KL divergence, and whether the
          step was taken: it is not if a gradient or statistic of any learner is not finite.
        """
        unroll = time_major(minibatch.unrolls, self._layout)
        with tf.GradientTape() as tape:
            outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
            steps = self._transitions(outputs, unroll)
            loss = losses.compute(
                steps,
                self._config.loss,
                self._scales(unroll.level),
                self._target_log_probs(unroll),
                _prepared(minibatch),
            )
        gradients = tape.gradient(loss.total, self.agent.trainable_variables)
        sums = _Sums(
            loss.steps,
            loss.squared_advantages,
            loss.kl * loss.steps,
        )
        value_sums = self._by_level(loss.value_sums, unroll.level)
        seen = self._seen(unroll) if observe else []
        norm, *answers = self._apply(gradients, own_signals, sums, value_sums, seen)
        lag = tf.cast(parameter_version - minibatch.unrolls.parameter_version, tf.float32)
        return _stats(loss, norm, lag), *answers

    def _without_batch(
        self, own_signals: tf.Tensor, observe: bool
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Takes part in the step of the other learners; returns the same without statistics."""
        zeros = [tf.zeros_like(variable) for variable in self.agent.trainable_variables]
        nothing = _Sums(*[tf.constant(0.0)] * len(_Sums._fields))
        observations = self._observations
        seen = observations.no_sums() if observe and observations is not None else []
        no_values = tf.zeros((3, self.agent.num_levels) if self.agent.num_levels else (3,))
        _, *answers = self._apply(zeros, own_signals, nothing, no_values, seen)
        return tuple(answers)

    def _prepare(self, batch: Unroll) -> Nest:
        """Returns ppo's estimates and values of a whole batch, float32 [B, T] each."""
        unroll = time_major(batch, self._layout)
        outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
        steps = self._transitions(outputs, unroll)
        found = ppo.estimate(steps, self._config.loss)
        return tuple(map(tf.transpose, (*found, steps.values)))

    def _transitions(self, outputs: NetworkOutput, unroll: Unroll) -> Transitions:
        values = outputs.baseline if self._values is None else self._values.values(outputs.baseline)
        values = self._of_level(values, unroll.level)
        return transitions(
            outputs,
            values,
            unroll.env_outputs,
            unroll.agent_outputs,
            self._config.loss,
            self.agent.distribution,
        )

    def _of_level(self, of_all: tf.Tensor, level: Nest) -> tf.Tensor:
        """Picks the own level's [..., B] out of [..., B, levels]; one level: nothing to pick."""
        if not self.agent.num_levels:
            return of_all
        return tf.reduce_sum(of_all * tf.one_hot(level, self.agent.num_levels), axis=-1)

    def _by_level(self, sums: tf.Tensor, level: Nest) -> tf.Tensor:
        """Adds up [..., B] over the batch: [..., levels], or [...] if there is one level."""
        if not self.agent.num_levels:
            return tf.reduce_sum(sums, axis=-1)
        return tf.matmul(sums, tf.one_hot(level, self.agent.num_levels))

    def _scales(self, level: Nest) -> Scales:
        return Scales(
            entropy_cost=self.entropy_cost,
            advantage_rms=1.0 if self._advantages is None else self._advantages.rms,
            value_std=1.0 if self._values is None else self._of_level(self._values.std, level),
        )

    def _target_log_probs(self, unroll: Unroll) -> tf.Tensor | None:
        if self.target_agent is None:
            return None
        outputs, _ = self.target_agent.unroll(unroll.env_outputs, unroll.core_state)
        return self.agent.distribution.log_prob(
            outputs.policy_logits[:-1], unroll.agent_outputs.action
        )

    def _seen(self, unroll: Unroll) -> list[tf.Tensor]:
        observations = self._observations
        if observations is None:
            return []
        # The last step of an unroll is the first of the next one.
        seen = tf.nest.map_structure(lambda part: part[:-1], unroll.env_outputs.observation)
        return observations.sums(seen)

    def _apply(
        self,
        gradients: list[tf.Tensor],
        own_signals: tf.Tensor,
        own_sums: _Sums,
        own_value_sums: tf.Tensor,
        own_seen: list[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Steps along the mean gradient of the learners that have a batch.

        Returns:
          the mean gradient's global norm before clipping, the sum of all learners' signals, their
          mean KL divergence (NaN if none of them had a batch), and whether the step was taken.
        """
        count = len(gradients)
        sent = [*gradients, own_signals, tf.stack(own_sums), own_value_sums, *own_seen]
        summed = self._group.sum(sent)
        gradients, group_signals = summed[:count], summed[count]
        sums, value_sums = _Sums(*tf.unstack(summed[count + 1])), summed[count + 2]
        seen = summed[count + 3 :]
        if self._group.size > 1:
            learners = tf.maximum(signals.num_batches(group_signals), 1.0)
            gradients = [gradient / learners for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        clip = resolved(self._config.optimizer.gradients_clipping)
        if clip > 0:
            gradients, _ = tf.clip_by_global_norm(gradients, clip, use_norm=norm)

        def step() -> tf.Tensor:
            self.optimizer.apply(gradients, self.agent.trainable_variables)
            self._add_statistics(sums, value_sums, seen)
            return tf.constant(True)

        # All learners see the same sums, so they decide alike and stay equal.
        finite = _all_finite([norm, *sums, value_sums, *seen])
        taken = tf.cond(finite, step, lambda: tf.constant(False))
        return norm, group_signals, sums.kl / sums.steps, taken

    def _add_statistics(self, sums: _Sums, value_sums: tf.Tensor, seen: list[tf.Tensor]) -> None:
        if self._advantages is not None:
            self._advantages.add(sums.steps, tf.constant(0.0), sums.squared_advantages)
        if self._values is not None:
            count, total, squares = tf.unstack(value_sums)
            self._values.add(count, total, squares, self.agent.baseline_layer)
        if seen and self._observations is not None:
            self._observations.add(seen)


def _all_finite(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in tensors])


def time_major(batch: Unroll, layout: ObservationLayout) -> Unroll:
    """Returns a batch [B, T, ...] as [T, B, ...], its observations as the network sees them."""
    return batch._replace(
        env_outputs=layout.time_major(batch.env_outputs),
        agent_outputs=tf.nest.map_structure(swap_batch_and_time, batch.agent_outputs),
    )


def _prepared(minibatch: Minibatch) -> tuple[Estimates, tf.Tensor] | None:
    if not minibatch.prepared:
        return None
    advantages, value_targets, values = map(tf.transpose, minibatch.prepared)
    return Estimates(advantages, value_targets), values


def _stats(loss: Losses, gradient_norm: tf.Tensor, lag: tf.Tensor) -> StepStats:
    return StepStats(
        loss_total=loss.total,
        loss_policy_gradient=loss.policy_gradient,
        loss_baseline=loss.baseline,
        entropy=loss.entropy,
        kl=loss.kl,
        explained_variance=loss.explained_variance,
        advantage_rms=tf.sqrt(loss.squared_advantages / tf.maximum(loss.steps, 1.0)),
        rho_clip_fraction=loss.rho_clip_fraction,
        c_clip_fraction=loss.c_clip_fraction,
        surrogate_clip_fraction=loss.surrogate_clip_fraction,
        gradient_norm=gradient_norm,
        policy_lag_mean=tf.reduce_mean(lag),
        policy_lag_max=tf.reduce_max(lag),
    )
