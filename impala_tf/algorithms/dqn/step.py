"""The gradient step of dqn."""

from __future__ import annotations

import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.agents.inputs import tensor_specs, to_network
from impala_tf.algorithms.dqn import targets as dqn
from impala_tf.algorithms.dqn.buffer import Sample
from impala_tf.config import Config
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.q_values import QStats, QValueStep
from impala_tf.learner.step import Learned, dense_gradients
from impala_tf.types import EnvironmentSpec, EnvOutput


class QStep(QValueStep):
    """The steps on what was replayed. Arguments and attributes as of `GradientStep`."""

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        super().__init__(agent, layout, config, group, has_target=True)

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
        targets = dqn.targets(
            minibatch.returns, minibatch.discounts, next_q_values, next_target_q_values
        )
        unit = self.agent.q_heads.std
        with tf.GradientTape() as tape:
            q_values = _q_values(self.agent, step)
            errors = targets - dqn.of_actions(q_values, minibatch.action)
            loss = tf.reduce_mean(minibatch.weights * dqn.huber(errors / unit))
        gradients = dense_gradients(tape, loss, self.agent.trainable_variables)
        stats = QStats(
            loss_total=loss,
            q_mean=tf.reduce_mean(dqn.of_actions(q_values, minibatch.action)),
            td_error_mean=tf.reduce_mean(tf.abs(errors)),
        )
        sums = self._sums_of(targets, minibatch.weights > 0.0)
        return Learned(gradients, stats, minibatch.parameter_version, sums, errors)


def _q_values(agent: Agent | None, step: EnvOutput) -> tf.Tensor:
    assert agent is not None
    outputs, _ = agent.step(step, ())
    return outputs.policy_logits
