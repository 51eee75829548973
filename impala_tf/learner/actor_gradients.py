"""a3c: actors compute the gradients, and the learner only steps along them.

Mnih et al., 2016, arXiv 1602.01783, algorithm S3. The loss is impala's: an actor's own unroll was
chosen by the parameters of its gradient, so every pi / mu is 1, and V-trace is the n-step return
(arXiv 1802.01561, section 4.1).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config, resolved
from impala_tf.environments.observations import layout_of
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, StepResult
from impala_tf.learner.policy_gradients import PolicyGradients, PolicyStats, policy_stats
from impala_tf.types import ActorGradient, ActorReport, EnvironmentSpec, Episode, Sent, Unroll


class Learner(Protocol):
    """Where gradients go (see `transport.ActorClient`)."""

    def push(self, sent: ActorGradient, /, episodes: list[Episode], report: ActorReport) -> None:
        """Sends a gradient; its arrays may be overwritten after the call."""


class GradientSender:
    """Sends the gradient of an unroll instead of the unroll.

    Args:
      learner: where gradients go.
      agent: with the parameters that acted; they must not change before `push` returns.
      spec: of the level.
      config: resolved.
    """

    def __init__(
        self, learner: Learner, agent: Agent, spec: EnvironmentSpec, config: Config
    ) -> None:
        self._learner = learner
        self._gradients = PolicyGradients(
            agent, layout_of(spec), config, resolved(config.loss.entropy_cost)
        )
        self._compute = tf.function(self._of_unroll, autograph=False)

    def push(self, unroll: Unroll, episodes: list[Episode], report: ActorReport) -> None:
        """Computes the gradient of an unroll [N, ...] and sends it."""
        gradients, stats = self._compute(tf.nest.map_structure(tf.constant, unroll))
        sent = ActorGradient(
            unroll.parameter_version[:1],
            tuple(gradient.numpy()[np.newaxis] for gradient in gradients),
            stats.numpy()[np.newaxis],
        )
        self._learner.push(sent, episodes, report)

    def _of_unroll(self, unroll: Unroll) -> tuple[list[tf.Tensor], tf.Tensor]:
        learned = self._gradients.of_batch(Minibatch(unroll, ()))
        # The learner knows the norm and the lag.
        stats = policy_stats(learned.loss, tf.constant(0.0), tf.constant([0.0]))
        return learned.gradients, tf.stack(stats)


class ActorGradientStep(GradientStep):
    """The steps along gradients of actors. Arguments and attributes as of `GradientStep`."""

    def compile(self, spec: EnvironmentSpec, own_signals: tf.Tensor) -> None:
        """See `GradientStep`."""
        sent = tf.nest.map_structure(
            lambda each: tf.TensorSpec((1, *each.shape), each.dtype), gradient_specs(self.agent)
        )
        version = tf.TensorSpec((), tf.int64)
        self.with_batch.get_concrete_function(sent, version, tf.TensorSpec.from_tensor(own_signals))

    def _with_batch(
        self,
        sent: ActorGradient,
        parameter_version: tf.Tensor,
        own_signals: tf.Tensor,
    ) -> StepResult:
        lag = tf.cast(parameter_version - sent.parameter_version[0], tf.float32)
        norm, result = self._step([each[0] for each in sent.gradients], own_signals)
        stats = PolicyStats(*tf.unstack(sent.stats[0]))
        stats = stats._replace(gradient_norm=norm, policy_lag_mean=lag, policy_lag_max=lag)
        return result._replace(stats=stats)

    def _without_batch(self, own_signals: tf.Tensor) -> StepResult:
        return self._step(self._no_gradients(), own_signals)[1]

    def _step(
        self, gradients: list[tf.Tensor], own_signals: tf.Tensor
    ) -> tuple[tf.Tensor, StepResult]:
        """Returns the gradient's norm, and the result without statistics."""
        applied = self._apply(gradients, own_signals, [], lambda sums: None)
        # Nothing changes the policy between an actor's steps and its gradient.
        no_kl = tf.constant(np.nan, tf.float32)
        result = StepResult((), applied.group_signals, applied.taken, no_kl, applied.all_reduce_s)
        return applied.gradient_norm, result


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
    return unroll_specs(agent, spec, resolved(config.optimizer.unroll_length))
