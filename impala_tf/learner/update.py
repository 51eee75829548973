"""One learner's state, and its compiled update."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import Agent
from impala_tf.config import Config, resolved
from impala_tf.environments.observations import ObservationLayout, layout_of, swap_batch_and_time
from impala_tf.learner import signals
from impala_tf.learner.algorithms import impala
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.optimizers import make_optimizer
from impala_tf.learner.signals import ControlFlags
from impala_tf.types import EnvironmentSpec, Unroll


class UpdateStats(NamedTuple):
    """Statistics of one update; float32 scalars. Losses are summed over the batch."""

    loss_total: tf.Tensor
    loss_policy_gradient: tf.Tensor
    loss_baseline: tf.Tensor
    entropy: tf.Tensor  # nats, mean over steps
    rho_clip_fraction: tf.Tensor
    c_clip_fraction: tf.Tensor
    gradient_norm: tf.Tensor  # global norm before clipping
    policy_lag_mean: tf.Tensor  # learner updates since the acting parameters, mean over the batch
    policy_lag_max: tf.Tensor


class Learner:
    """Agent, optimizer and counters of one learner.

    Args:
      agent: the network, its variables made.
      spec: of the level.
      config: resolved.
      group: the learners whose gradients are averaged.

    Attributes:
      learner_updates: gradient steps so far.
      agent_steps: decisions learned from so far, over all learners.
      environment_frames: environment frames behind these steps.
      ranks_without_batch: learners that had no batch for the last update.
    """

    def __init__(
        self, agent: Agent, spec: EnvironmentSpec, config: Config, group: LearnerGroup
    ) -> None:
        self.agent = agent
        self._spec = spec
        self._layout = layout_of(spec)
        self._config = config
        self._group = group
        self._total_frames = resolved(config.run.total_environment_frames)
        self._learning_rate = tf.Variable(0.0, trainable=False, name="learning_rate")
        self.optimizer = make_optimizer(
            config.optimizer, self._learning_rate, agent.trainable_variables
        )
        self.learner_updates = 0
        self.agent_steps = 0
        self.environment_frames = 0
        self.ranks_without_batch: tuple[int, ...] = ()
        self._update = tf.function(self._update_graph)
        self._update_without_batch = tf.function(self._update_without_batch_graph)

    @property
    def parameter_version(self) -> int:
        """The version of the current parameters: how many learner updates made them."""
        return self.learner_updates

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update; falls linearly to 0 over the run's frames."""
        left = max(0.0, 1.0 - self.environment_frames / self._total_frames)
        return resolved(self._config.optimizer.learning_rate) * left

    @property
    def done(self) -> bool:
        """Whether the run has reached its total frames."""
        return self.environment_frames >= self._total_frames

    def parameters(self) -> list[np.ndarray]:
        """Returns a copy of the trainable variables, in the order that actors assign them."""
        return [variable.numpy() for variable in self.agent.trainable_variables]

    def parameters_and_slots(self) -> list[tf.Variable]:
        """Returns everything that an update changes."""
        return [*self.agent.variables, *self.optimizer.variables]

    def trackables(self) -> dict[str, tf.Module]:
        """Returns what a checkpoint holds besides `counters`."""
        return {"agent": self.agent, "optimizer": self.optimizer}

    def counters(self) -> dict[str, int]:
        """Returns the counters, JSON-able."""
        return {
            "learner_updates": self.learner_updates,
            "agent_steps": self.agent_steps,
            "environment_frames": self.environment_frames,
        }

    def restore_counters(self, counters: dict[str, int]) -> None:
        """Restores what `counters` returned."""
        self.learner_updates = counters["learner_updates"]
        self.agent_steps = counters["agent_steps"]
        self.environment_frames = counters["environment_frames"]

    def synchronize(self) -> None:
        """Gives every learner rank 0's parameters and optimizer slots."""
        self._group.broadcast(self.parameters_and_slots())

    def update(self, batch: Unroll, flags: ControlFlags) -> tuple[UpdateStats, ControlFlags]:
        """Runs `updates_per_batch` gradient steps on a batch [B, ...].

        Returns:
          the first step's statistics, and the group's control flags.
        """
        self._learning_rate.assign(self.learning_rate)
        own_signals = self._encode(flags, has_batch=True)
        stats = []
        for step in range(self._config.optimizer.updates_per_batch):
            version = tf.constant(self.parameter_version + step, tf.int64)
            step_stats, group_signals = self._update(batch, version, own_signals)
            stats.append(step_stats)
        return stats[0], self._count(group_signals)

    def update_without_batch(self, flags: ControlFlags) -> ControlFlags:
        """Takes part in the other learners' gradient steps; returns the group's control flags.

        For a learner without a batch, so that the others do not wait for it.
        """
        self._learning_rate.assign(self.learning_rate)
        own_signals = self._encode(flags, has_batch=False)
        for _ in range(self._config.optimizer.updates_per_batch):
            group_signals = self._update_without_batch(own_signals)
        return self._count(group_signals)

    def _encode(self, flags: ControlFlags, has_batch: bool) -> tf.Tensor:
        return signals.encode(flags, has_batch, self._group.rank, self._group.size)

    def _count(self, group_signals: tf.Tensor) -> ControlFlags:
        flags, has_batch = signals.decode(group_signals)
        self.ranks_without_batch = tuple(np.flatnonzero(~has_batch).tolist())
        optimizer = self._config.optimizer
        self.learner_updates += optimizer.updates_per_batch
        self.agent_steps += int(has_batch.sum()) * optimizer.batch_size * optimizer.unroll_length
        self.environment_frames = self.agent_steps * self._spec.frames_per_step
        return flags

    def _update_graph(
        self, batch: Unroll, parameter_version: tf.Tensor, own_signals: tf.Tensor
    ) -> tuple[UpdateStats, tf.Tensor]:
        unroll = time_major(batch, self._layout)
        with tf.GradientTape() as tape:
            outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
            loss = impala.compute(
                outputs, unroll.env_outputs, unroll.agent_outputs, self._config.loss
            )
        gradients = tape.gradient(loss.total, self.agent.trainable_variables)
        norm, group_signals = self._apply(gradients, own_signals)
        lag = tf.cast(parameter_version - batch.parameter_version, tf.float32)
        stats = UpdateStats(
            loss_total=loss.total,
            loss_policy_gradient=loss.policy_gradient,
            loss_baseline=loss.baseline,
            entropy=loss.entropy,
            rho_clip_fraction=loss.rho_clip_fraction,
            c_clip_fraction=loss.c_clip_fraction,
            gradient_norm=norm,
            policy_lag_mean=tf.reduce_mean(lag),
            policy_lag_max=tf.reduce_max(lag),
        )
        return stats, group_signals

    def _update_without_batch_graph(self, own_signals: tf.Tensor) -> tf.Tensor:
        zeros = [tf.zeros_like(variable) for variable in self.agent.trainable_variables]
        _, group_signals = self._apply(zeros, own_signals)
        return group_signals

    def _apply(
        self, gradients: list[tf.Tensor], own_signals: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Steps along the mean gradient of the learners that have a batch.

        Returns:
          the mean gradient's global norm before clipping, and the sum of all learners' signals.
        """
        *gradients, group_signals = self._group.sum([*gradients, own_signals])
        if self._group.size > 1:
            learners = tf.maximum(signals.num_batches(group_signals), 1.0)
            gradients = [gradient / learners for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        clip = self._config.optimizer.gradients_clipping
        if clip > 0:
            gradients, _ = tf.clip_by_global_norm(gradients, clip, use_norm=norm)
        self.optimizer.apply(gradients, self.agent.trainable_variables)
        return norm, group_signals


def time_major(batch: Unroll, layout: ObservationLayout) -> Unroll:
    """Returns a batch [B, T, ...] as [T, B, ...], its observations as the network sees them."""
    return batch._replace(
        env_outputs=layout.time_major(batch.env_outputs),
        agent_outputs=tf.nest.map_structure(swap_batch_and_time, batch.agent_outputs),
    )
