"""Gradient steps of Q-values: the base class, and the step on whole unrolls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.config import Config
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner import losses
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, Learned, dense_gradients
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.losses import Estimates, Transitions
from impala_tf.learner.moments import RunningMoments
from impala_tf.learner.policy_step import UnrollStep, time_major
from impala_tf.types import Unroll

_VALUE_DECAY = 0.999  # of the targets' mean and standard deviation, at each step


class QStats(NamedTuple):
    """Statistics of one gradient step; float32 scalars."""

    loss_total: tf.Tensor  # mean over the steps (weighted in dqn), of normalised values
    q_mean: tf.Tensor  # mean Q(x, a) of the chosen actions
    td_error_mean: tf.Tensor  # mean absolute TD error
    # `GradientStep` fills these in:
    gradient_norm: tf.Tensor = 0.0  # global norm before clipping
    policy_lag_mean: tf.Tensor = 0.0  # mean of the learner updates since the acting parameters
    policy_lag_max: tf.Tensor = 0.0


class QValueStep(GradientStep):
    """A gradient step of a Q-network, which may predict normalised values.

    For arguments and attributes see `GradientStep`.
    """

    STATS = QStats

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        super().__init__(agent, layout, config, group)
        normalizes = config.loss.value_normalization == "running"
        self._values = RunningMoments(_VALUE_DECAY) if normalizes else None

    def trackables(self) -> dict[str, snt.Module]:
        """Returns what a checkpoint holds, by name."""
        own = {} if self._values is None else {"value_moments": self._values}
        return {**super().trackables(), **own}

    def _sums_of(self, targets: tf.Tensor, counts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the sums of targets that learners exchange, for `_add`.

        Args:
          targets: float32, of any shape.
          counts: bool, of the same shape: which targets count.
        """
        if self._values is None:
            return {}
        weight = tf.cast(counts, tf.float32)
        targets = targets - self._values.mean
        powers = (tf.ones_like(weight), targets, targets**2)
        return {"values": tf.stack([tf.reduce_sum(weight * power) for power in powers])}

    def _add(self, sums: dict[str, tf.Tensor]) -> None:
        if self._values is not None:
            self._values.add(*tf.unstack(sums["values"]))
            self.agent.q_heads.set_unit(self._values.mean, self._values.std)


class UnrollQStep(QValueStep, UnrollStep):
    """A gradient step on whole unrolls, with targets from before their batch's first step."""

    PREPARED = 1

    def _transitions(self, unrolls: Unroll) -> Transitions:
        return self._steps_of(unrolls)[1]

    def _prepared_of(self, estimates: Estimates) -> Sequence[tf.Tensor]:
        return (estimates.value_targets,)

    def _steps_of(self, unrolls: Unroll) -> tuple[tf.Tensor, Transitions]:
        """Returns Q(x, a) of the chosen actions, float32 [T, B], and the transitions.

        The transitions' values are max_a Q(x, a).
        """
        unroll = time_major(unrolls, self.layout)
        outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
        steps = losses.transitions(
            outputs.policy_logits,
            outputs.baseline[..., 0],
            unroll.env_outputs,
            unroll.agent_outputs,
            self._config.loss,
            self.agent.distribution,
        )
        taken = tf.gather(outputs.policy_logits[:-1], unroll.agent_outputs.action, batch_dims=2)
        return taken, steps

    def _learn(self, minibatch: Minibatch) -> Learned:
        targets = tf.transpose(minibatch.prepared[0])
        unit = self.agent.q_heads.std
        with tf.GradientTape() as tape:
            q_values, steps = self._steps_of(minibatch.unrolls)
            weight = tf.cast(steps.valid, tf.float32)
            count = tf.maximum(tf.reduce_sum(weight), 1.0)
            errors = targets - q_values
            loss = 0.5 * tf.reduce_sum(weight * tf.square(errors / unit)) / count
        gradients = dense_gradients(tape, loss, self.agent.trainable_variables)
        stats = QStats(
            loss_total=loss,
            q_mean=tf.reduce_sum(weight * q_values) / count,
            td_error_mean=tf.reduce_sum(weight * tf.abs(errors)) / count,
        )
        sums = self._sums_of(targets, steps.valid)
        return Learned(gradients, stats, minibatch.unrolls.parameter_version, sums)
