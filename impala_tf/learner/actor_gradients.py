"""Gradients that actors compute: how they are made, sent and applied (see a3c)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.agents.n_step_returns import played_steps
from impala_tf.config import Config, algorithm
from impala_tf.environments.observations import layout_of
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, Learned, batched
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.policy_step import PolicyStats, PolicyStep, policy_stats
from impala_tf.types import ActorGradient, ActorReport, EnvironmentSpec, Episode, Sent, Unroll

PushGradient = Callable[[ActorGradient, list[Episode], ActorReport], None]
"""Sends a gradient, whose arrays may be overwritten after the call. See `ActorClient.push`."""


class GradientSender:
    """Sends the gradient of an unroll instead of the unroll.

    Args:
      push_gradient: sends the gradient to the learner.
      agent: the agent that chose the actions; its variables must not change before `push` returns.
      spec: the level's specification.
      config: the run's config.
    """

    def __init__(
        self, push_gradient: PushGradient, agent: Agent, spec: EnvironmentSpec, config: Config
    ) -> None:
        self._push_gradient = push_gradient
        self._step = PolicyStep(agent, layout_of(spec), config, LearnerGroup())
        self._step.entropy_cost.assign(config.loss.entropy_cost)
        self._compute = tf.function(self._of_unroll, autograph=False)

    def push(self, unroll: Unroll, episodes: list[Episode], report: ActorReport) -> None:
        """Computes the gradient of an unroll [N, ...] and sends it."""
        gradients, stats = self._compute(tf.nest.map_structure(tf.constant, unroll))
        actor_gradient = ActorGradient(
            unroll.parameter_version[:1],
            tuple(gradient.numpy()[np.newaxis] for gradient in gradients),
            stats.numpy()[np.newaxis],
            np.array([played_steps(unroll)], np.int32),
        )
        self._push_gradient(actor_gradient, episodes, report)

    def _of_unroll(self, unroll: Unroll) -> tuple[list[tf.Tensor], tf.Tensor]:
        gradients, loss = self._step.gradients_of(Minibatch(unroll))
        return gradients, tf.stack(policy_stats(loss))  # the learner fills in the norm and the lag


class ActorGradientStep(GradientStep):
    """Applies gradients of actors. For arguments and attributes see `GradientStep`."""

    STATS = PolicyStats

    def minibatch_specs(self, spec: EnvironmentSpec) -> ActorGradient:
        """Returns an ActorGradient [1, ...] of tf.TensorSpec."""
        specs: ActorGradient = batched(gradient_specs(self.agent), 1)
        return specs

    def _learn(self, sent: ActorGradient) -> Learned:
        stats = PolicyStats(*tf.unstack(sent.stats[0]))
        # The policy does not change between an actor's steps and its gradient, so there is no "kl".
        gradients = [gradient[0] for gradient in sent.gradients]
        return Learned(gradients, stats, sent.parameter_version, {})


def gradient_specs(agent: Agent) -> ActorGradient:
    """Returns an ActorGradient of tf.TensorSpec, without the leading 1."""
    return ActorGradient(
        parameter_version=tf.TensorSpec((), tf.int64),
        gradients=tuple(tf.TensorSpec(v.shape, v.dtype) for v in agent.trainable_variables),
        stats=tf.TensorSpec((len(PolicyStats._fields),), tf.float32),
        num_played=tf.TensorSpec((), tf.int32),
    )


def sent_specs(agent: Agent, spec: EnvironmentSpec, config: Config) -> Sent:
    """Returns what actors send to their learner, as tf.TensorSpec without the leading dimension.

    Args:
      agent: an agent whose variables have been created.
      spec: the level's specification.
      config: the run's config.
    """
    if algorithm(config.loss.algorithm).actors_send == "gradients":
        return gradient_specs(agent)
    return unroll_specs(agent, spec, config.optimizer.unroll_length)
