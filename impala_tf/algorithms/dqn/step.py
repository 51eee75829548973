"""The gradient step of dqn.

Double DQN (van Hasselt et al., 2016, arXiv 1509.06461) with the n-step returns of Ape-X.
"""

from __future__ import annotations

import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.agents.inputs import tensor_specs, to_network
from impala_tf.algorithms.dqn.buffer import Sample
from impala_tf.learner.q_values import QStats, QValueStep
from impala_tf.learner.step import Learned, dense_gradients
from impala_tf.types import EnvironmentSpec, EnvOutput


class QStep(QValueStep):
    """The steps on what was replayed. Arguments and attributes as of `GradientStep`."""

    HAS_TARGET = True

    def compile(self, spec: EnvironmentSpec) -> None:
        """Makes the graph of `step` now, and calls it directly from then on.

        Finding the graph for the arguments takes a sixth of a small network's step.
        """
        self.step = self.step.get_concrete_function(*self._arguments(spec))

    def minibatch_specs(self, spec: EnvironmentSpec) -> Sample:
        """Returns a Sample of tf.TensorSpec; if it is masked, its weights are 0."""
        size = self._config.replay.replay_batch_size
        seen = tensor_specs(self.layout.step_specs(size))
        number, version = tf.TensorSpec((size,), tf.float32), tf.TensorSpec((size,), tf.int64)
        action = tf.TensorSpec((size,), tf.int32)
        return Sample(seen, action, number, number, seen, number, version)

    def _learn(self, minibatch: Sample) -> Learned:
        step, next_step = (
            to_network(self.layout, each) for each in (minibatch.step, minibatch.next_step)
        )
        next_q_values = _q_values(self.agent, next_step)
        next_target_q_values = _q_values(self.target_agent, next_step)
        targets = double_q_targets(
            minibatch.returns, minibatch.discounts, next_q_values, next_target_q_values
        )
        unit = self.agent.q_heads.std
        with tf.GradientTape() as tape:
            q_values = _q_values(self.agent, step)
            errors = targets - of_actions(q_values, minibatch.action)
            loss = tf.reduce_mean(minibatch.weights * huber(errors / unit))
        gradients = dense_gradients(tape, loss, self.agent.trainable_variables)
        stats = QStats(
            loss_total=loss,
            q_mean=tf.reduce_mean(of_actions(q_values, minibatch.action)),
            td_error_mean=tf.reduce_mean(tf.abs(errors)),
        )
        sums = self._sums_of(targets, minibatch.weights > 0.0)
        return Learned(gradients, stats, minibatch.parameter_version, sums, errors)


def double_q_targets(
    returns: tf.Tensor,
    discounts: tf.Tensor,
    next_q_values: tf.Tensor,
    next_target_q_values: tf.Tensor,
) -> tf.Tensor:
    """Returns what Q(x, a) should be: R + gamma^m Q'(x', argmax_a Q(x', a)), float32 [B].

    No gradient flows through it.

    Args:
      returns: R, float32 [B]; see `returns.NStepReturns`.
      discounts: gamma^m, or 0 where an episode terminated, float32 [B].
      next_q_values: Q(x', .) of the network that is learned, float32 [B, A].
      next_target_q_values: Q'(x', .) of the target network, float32 [B, A].
    """
    best = tf.argmax(next_q_values, axis=-1, output_type=tf.int32)
    return tf.stop_gradient(returns + discounts * of_actions(next_target_q_values, best))


def of_actions(q_values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns Q(x, a), float32 [B], of q_values [B, A] and actions int32 [B]."""
    return tf.gather(q_values, actions, batch_dims=1)


def huber(errors: tf.Tensor) -> tf.Tensor:
    """Returns half the square of errors up to 1, beyond that their distance from a half.

    Its gradient is the error, clipped to [-1, 1] (Mnih et al., 2015, "Human-level control").
    """
    size = tf.abs(errors)
    inside = tf.minimum(size, 1.0)
    return inside * (size - 0.5 * inside)


def _q_values(agent: Agent | None, step: EnvOutput) -> tf.Tensor:
    assert agent is not None
    outputs, _ = agent.step(step, ())
    return outputs.policy_logits
