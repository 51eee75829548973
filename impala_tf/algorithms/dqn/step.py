"""The gradient step of dqn.

Double DQN (van Hasselt et al., 2016, arXiv 1509.06461) with the n-step returns of Ape-X.
"""

from __future__ import annotations

import tensorflow as tf

from impala_tf.agents.agent import Agent, tensor_specs
from impala_tf.algorithms.dqn.buffer import Sample
from impala_tf.learner.gradient_step import Learned, dense_gradients
from impala_tf.learner.q_step import QStats, QValueStep
from impala_tf.types import EnvironmentSpec, EnvOutput


class QStep(QValueStep):
    """The gradient step on a replayed sample. For arguments and attributes see `GradientStep`."""

    HAS_TARGET = True

    def compile(self, spec: EnvironmentSpec) -> None:
        """Builds the graph of `step` now, and makes later calls go directly to it.

        Looking up the graph for the arguments takes a sixth of a small network's step.
        """
        self.step = self.step.get_concrete_function(*self._arguments(spec))

    def minibatch_specs(self, spec: EnvironmentSpec) -> Sample:
        """Returns a Sample of tf.TensorSpec. A masked sample is all 0, and so are its weights."""
        size = self._config.replay.replay_batch_size
        step = tensor_specs(self.layout.step_specs(size))
        number, version = tf.TensorSpec((size,), tf.float32), tf.TensorSpec((size,), tf.int64)
        action = tf.TensorSpec((size,), tf.int32)
        return Sample(step, action, number, number, step, number, version)

    def _learn(self, minibatch: Sample) -> Learned:
        step, next_step = (
            self.layout.to_network(steps) for steps in (minibatch.step, minibatch.next_step)
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
    """Returns the targets of Q(x, a): R + gamma^m Q'(x', argmax_a Q(x', a)), float32 [B].

    Double DQN (arXiv 1509.06461, equation 4) with n-step returns (arXiv 1803.00933, section 3.3).
    Gradients do not flow through them.

    Args:
      returns: R, float32 [B]; see `n_step_returns.NStepReturns`.
      discounts: gamma^m, or 0 where an episode terminated, float32 [B].
      next_q_values: Q(x', .) of the online network, float32 [B, A].
      next_target_q_values: Q'(x', .) of the target network, float32 [B, A].
    """
    best = tf.argmax(next_q_values, axis=-1, output_type=tf.int32)
    return tf.stop_gradient(returns + discounts * of_actions(next_target_q_values, best))


def of_actions(q_values: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns Q(x, a), float32 [B], from q_values [B, A] and actions, int32 [B]."""
    return tf.gather(q_values, actions, batch_dims=1)


def huber(errors: tf.Tensor) -> tf.Tensor:
    """Returns the Huber loss: 0.5 e^2 if |e| <= 1, else |e| - 0.5; the shape of `errors`.

    Its gradient is the error clipped to [-1, 1] (Mnih et al., 2015, "Human-level control").
    """
    size = tf.abs(errors)
    quadratic = tf.minimum(size, 1.0)
    return quadratic * (size - 0.5 * quadratic)


def _q_values(agent: Agent | None, step: EnvOutput) -> tf.Tensor:
    assert agent is not None
    outputs, _ = agent.step(step, ())
    return outputs.policy_logits
