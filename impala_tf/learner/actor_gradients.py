"""a3c: actors compute the gradients, and the learner only steps along them.

Mnih et al., 2016, arXiv 1602.01783, algorithm S3. The loss is impala's: an actor's own unroll was
chosen by the parameters of its gradient, so every pi / mu is 1, and V-trace is the n-step return
(arXiv 1802.01561, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config
from impala_tf.environments.observations import layout_of
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, StepResult
from impala_tf.learner.policy_gradients import PolicyGradients, PolicyStats, policy_stats
from impala_tf.types import ActorGradient, ActorReport, EnvironmentSpec, Episode, Nest, Sent, Unroll

PushGradient = Callable[[ActorGradient, list[Episode], ActorReport], None]
"""Sends a gradient, whose arrays may be overwritten after the call. See `ActorClient.push`."""


class GradientSender:
    """Sends the gradient of an unroll instead of the unroll.

    Args:
      push_gradient: sends it to the learner.
      agent: with the parameters that acted; they must not change before `push` returns.
      spec: of the level.
      config: resolved.
    """

    def __init__(
        self, push_gradient: PushGradient, agent: Agent, spec: EnvironmentSpec, config: Config
    ) -> None:
        self._push_gradient = push_gradient
        self._gradients = PolicyGradients(agent, layout_of(spec), config, config.loss.entropy_cost)
        self._compute = tf.function(self._of_unroll, autograph=False)

    def push(self, unroll: Unroll, episodes: list[Episode], report: ActorReport) -> None:
        """Computes the gradient of an unroll [N, ...] and sends it."""
        gradients, stats = self._compute(tf.nest.map_structure(tf.constant, unroll))
        sent = ActorGradient(
            unroll.parameter_version[:1],
            tuple(gradient.numpy()[np.newaxis] for gradient in gradients),
            stats.numpy()[np.newaxis],
        )
        self._push_gradient(sent, episodes, report)

    def _of_unroll(self, unroll: Unroll) -> tuple[list[tf.Tensor], tf.Tensor]:
        learned = self._gradients.of_batch(Minibatch(unroll, ()))
        # The learner knows the norm and the lag.
        stats = policy_stats(learned.loss, tf.constant(0.0), tf.constant([0.0]))
        return learned.gradients, tf.stack(stats)


class ActorGradientStep(GradientStep):
    """The steps along gradients of actors. Arguments and attributes as of `GradientStep`."""

    def compile(self, spec: EnvironmentSpec) -> None:
        """See `GradientStep`."""
        version, learners = tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.float32)
        self.step.get_concrete_function(self._sent(), version, learners)

    def masked(self, spec: EnvironmentSpec) -> ActorGradient:
        """See `GradientStep`."""
        return tf.nest.map_structure(lambda each: tf.zeros(each.shape, each.dtype), self._sent())

    def _sent(self) -> ActorGradient:
        """Returns an ActorGradient [1, ...] of tf.TensorSpec."""
        return tf.nest.map_structure(
            lambda each: tf.TensorSpec((1, *each.shape), each.dtype), gradient_specs(self.agent)
        )

    def _step(
        self, sent: ActorGradient, parameter_version: tf.Tensor, learners: tf.Tensor
    ) -> StepResult:
        applied = self._apply([each[0] for each in sent.gradients], (), learners)
        lag = tf.cast(parameter_version - sent.parameter_version[0], tf.float32)
        stats = PolicyStats(*tf.unstack(sent.stats[0]))
        stats = stats._replace(
            gradient_norm=applied.gradient_norm, policy_lag_mean=lag, policy_lag_max=lag
        )
        # Nothing changes the policy between an actor's steps and its gradient.
        no_kl = tf.constant(np.nan, tf.float32)
        return StepResult(stats, applied.taken, no_kl, applied.all_reduce_s)

    def _add(self, sums: Nest) -> None:
        """There are no statistics: `sums` is empty."""


def gradient_specs(agent: Agent) -> ActorGradient:
    """Returns an ActorGradient of tf.TensorSpec, without the leading 1."""
    return ActorGradient(
        parameter_version=tf.TensorSpec((), tf.int64),
        gradients=tuple(tf.TensorSpec(v.shape, v.dtype) for v in agent.trainable_variables),
        stats=tf.TensorSpec((len(PolicyStats._fields),), tf.float32),
    )


def sent_specs(agent: Agent, spec: EnvironmentSpec, config: Config) -> Sent:
    """Returns what actors send to their learner, as tf.TensorSpec without the leading dimension.

    Args:
      agent: its variables made.
      spec: of the level.
      config: resolved.
    """
    if config.loss.algorithm == "a3c":
        return gradient_specs(agent)
    return unroll_specs(agent, spec, config.optimizer.unroll_length)
