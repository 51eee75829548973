"""Gradients that actors compute: how they are made, sent and stepped along (see a3c)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config, algorithm
from impala_tf.environments.observations import layout_of
from impala_tf.learner.policy import PolicyGradients, PolicyStats, policy_stats
from impala_tf.learner.step import GradientStep, Learned, batched
from impala_tf.learner.transitions import Minibatch
from impala_tf.types import ActorGradient, ActorReport, EnvironmentSpec, Episode, Sent, Unroll

PushGradient = Callable[[ActorGradient, list[Episode], ActorReport], None]
"""Sends a gradient, whose arrays may be overwritten after the call. See `ActorClient.push`."""


class GradientSender:
    """Sends the gradient of an unroll instead of the unroll.

    Args:
      push_gradient: sends it to the learner.
      agent: with the parameters that acted; they must not change before `push` returns.
      spec: the level's.
      config: the run's.
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
        gradients, loss = self._gradients.of_batch(Minibatch(unroll))
        return gradients, tf.stack(policy_stats(loss))  # the learner knows the norm and the lag


class ActorGradientStep(GradientStep):
    """The steps along gradients of actors. Arguments and attributes as of `GradientStep`."""

    def minibatch_specs(self, spec: EnvironmentSpec) -> ActorGradient:
        """Returns an ActorGradient [1, ...] of tf.TensorSpec."""
        specs: ActorGradient = batched(gradient_specs(self.agent), 1)
        return specs

    def _learn(self, sent: ActorGradient) -> Learned:
        stats = PolicyStats(*tf.unstack(sent.stats[0]))
        # Nothing changes the policy between an actor's steps and its gradient: there is no kl.
        return Learned([each[0] for each in sent.gradients], stats, sent.parameter_version, {})


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
      spec: the level's.
      config: the run's.
    """
    if algorithm(config.loss.algorithm).actors_send == "gradients":
        return gradient_specs(agent)
    return unroll_specs(agent, spec, config.optimizer.unroll_length)
