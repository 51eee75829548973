"""The learner: one compiled update, and the loop that feeds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_tf import agents, frame_stack, losses
from impala_tf.allreduce import LearnerGroup
from impala_tf.config import Config, known
from impala_tf.types import EnvironmentSpec, Unroll


class UpdateStats(NamedTuple):
    """What one update found; float32 scalars, losses summed over the batch as minimised."""

    loss_total: tf.Tensor
    loss_policy_gradient: tf.Tensor
    loss_baseline: tf.Tensor
    entropy: tf.Tensor  # nats, mean over steps
    rho_clip_fraction: tf.Tensor
    c_clip_fraction: tf.Tensor
    gradient_norm: tf.Tensor  # global norm before clipping
    policy_lag_mean: tf.Tensor  # updates since the acting parameters, mean over the batch
    policy_lag_max: tf.Tensor


class Control(NamedTuple):
    """What learners tell each other in every update; any learner's True is everybody's."""

    stop: bool
    write_row: bool
    checkpoint: bool


_WISHES = len(Control._fields)


class Learner:
    """Agent, optimizer and counters of one learner.

    Args:
      agent: the network, its variables made.
      spec: of the level.
      config: resolved.
      group: the learners whose gradients are averaged.
    """

    def __init__(
        self, agent: agents.Agent, spec: EnvironmentSpec, config: Config, group: LearnerGroup
    ) -> None:
        self.agent = agent
        self._spec = spec
        self._config = config
        self._group = group
        self._total_frames = known(config.run.total_environment_frames)
        self._updates_per_batch = config.optimizer.updates_per_batch
        self._learning_rate = tf.Variable(0.0, trainable=False, name="learning_rate")
        self.optimizer = snt.optimizers.RMSProp(
            learning_rate=self._learning_rate,
            decay=config.optimizer.decay,
            momentum=config.optimizer.momentum,
            epsilon=known(config.optimizer.epsilon),
        )
        # Slots exist before the first update, so that a checkpoint can be restored into them.
        self.optimizer._initialize(agent.trainable_variables)
        # Mean squares start at 1, as in TensorFlow 1 and so in the paper's experiments. From 0,
        # where Sonnet starts, the first steps are ten times too large and leave dead units behind.
        for mean_square in self.optimizer.ms:
            mean_square.assign(tf.ones_like(mean_square))
        self.updates = 0
        self.agent_steps = 0  # decisions learned from, all learners together
        self.environment_frames = 0
        self.without_batch: tuple[int, ...] = ()  # ranks that had none for the last update
        self._update = tf.function(self._update_graph)
        self._join = tf.function(self._join_graph)

    @property
    def learning_rate(self) -> float:
        """The rate of the next update: annealed linearly to 0 over the global frames."""
        left = max(0.0, 1.0 - self.environment_frames / self._total_frames)
        return known(self._config.optimizer.learning_rate) * left

    @property
    def done(self) -> bool:
        """Whether the run has had all its frames."""
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
            "learner_updates": self.updates,
            "agent_steps": self.agent_steps,
            "environment_frames": self.environment_frames,
        }

    def restore_counters(self, counters: dict[str, int]) -> None:
        """Takes what `counters` returned."""
        self.updates = counters["learner_updates"]
        self.agent_steps = counters["agent_steps"]
        self.environment_frames = counters["environment_frames"]

    def synchronize(self) -> None:
        """Gives every learner rank 0's parameters and optimizer slots."""
        self._group.broadcast(self.parameters_and_slots())

    def update(self, batch: Unroll, control: Control) -> tuple[UpdateStats, Control]:
        """Takes the steps of a batch [B, ...]; returns its findings and the group's wishes.

        The findings are those of the batch's first step, whatever `updates_per_batch` is.
        """
        self._learning_rate.assign(self.learning_rate)
        wishes = self._as_tensor(control, has_batch=True)
        found = [
            self._update(batch, tf.constant(self.updates + step, tf.int64), wishes)
            for step in range(self._updates_per_batch)
        ]
        return found[0][0], self._count(found[-1][1])

    def join(self, control: Control) -> Control:
        """Takes part in the others' steps without a batch; returns the group's wishes.

        For a learner that has none and must not keep the others waiting.
        """
        self._learning_rate.assign(self.learning_rate)
        wishes = self._as_tensor(control, has_batch=False)
        return self._count([self._join(wishes) for _ in range(self._updates_per_batch)][-1])

    def _count(self, summed: tf.Tensor) -> Control:
        wishes, has_batch = np.split(summed.numpy(), [_WISHES])
        self.without_batch = tuple(np.flatnonzero(has_batch == 0).tolist())
        steps = self._config.optimizer.batch_size * self._config.optimizer.unroll_length
        self.updates += self._updates_per_batch
        self.agent_steps += steps * round(float(has_batch.sum()))
        self.environment_frames = self.agent_steps * self._spec.frames_per_step
        return Control(*(bool(wish > 0) for wish in wishes))

    def _as_tensor(self, control: Control, has_batch: bool) -> tf.Tensor:
        """Returns what is summed over the learners beside gradients: wishes, who has a batch."""
        ranks = [has_batch and rank == self._group.rank for rank in range(self._group.size)]
        return tf.constant([*map(float, control), *map(float, ranks)])

    def _update_graph(
        self, batch: Unroll, version: tf.Tensor, control: tf.Tensor
    ) -> tuple[UpdateStats, tf.Tensor]:
        unroll = time_major(batch, self._spec)
        with tf.GradientTape() as tape:
            outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
            loss = losses.compute(
                outputs, unroll.env_outputs, unroll.agent_outputs, self._config.loss
            )
        gradients = tape.gradient(loss.total, self.agent.trainable_variables)
        norm, control = self._apply(gradients, control)
        lag = tf.cast(version - batch.parameter_version, tf.float32)
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
        return stats, control

    def _join_graph(self, control: tf.Tensor) -> tf.Tensor:
        nothing = [tf.zeros_like(variable) for variable in self.agent.trainable_variables]
        _, control = self._apply(nothing, control)
        return control

    def _apply(self, gradients: list[tf.Tensor], control: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Steps along the mean gradient of the learners that have a batch.

        Returns the mean's global norm before clipping, and the sum of the control vectors.
        """
        *gradients, control = self._group.sum([*gradients, control])
        if self._group.size > 1:
            learners = tf.maximum(tf.reduce_sum(control[_WISHES:]), 1.0)
            gradients = [gradient / learners for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        clip = self._config.optimizer.gradients_clipping
        if clip > 0:
            gradients, _ = tf.clip_by_global_norm(gradients, clip, use_norm=norm)
        self.optimizer.apply(gradients, self.agent.trainable_variables)
        return norm, control


def time_major(batch: Unroll, spec: EnvironmentSpec) -> Unroll:
    """Returns a batch [B, T, ...] as [T, B, ...], its observations as the agent sees them."""

    def swap(tensor: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])

    packed = batch.env_outputs
    if spec.stacked_frames:
        observation = frame_stack.rebuild(packed.observation, packed.autoreset)
    else:
        observation = swap(packed.observation)
    flags = tf.nest.map_structure(swap, packed._replace(observation=packed.reward))
    return batch._replace(
        env_outputs=flags._replace(observation=observation),
        agent_outputs=tf.nest.map_structure(swap, batch.agent_outputs),
    )


class Recorder(Protocol):
    """Where the loop's findings go (see `recorder.RunRecorder`)."""

    def record_update(self, stats: UpdateStats | None, idle_s: float) -> None:
        """Takes an update's findings, None without a batch, and how long the wait for it was."""

    def row_due(self) -> bool:
        """Whether a row of metrics should be written now."""

    def interval(self) -> dict[str, Any]:
        """Returns this learner's part of the next row and begins a new interval."""

    def write_row(self, intervals: list[dict[str, Any]], learner: Learner) -> None:
        """Writes a row from all learners' parts."""


_NO_MORE: Any = object()


class TrainingLoop:
    """Feeds batches to a learner until the frames are used up or somebody wishes to stop.

    Args:
      learner: what is trained.
      publish: takes (version, arrays) after every update.
      recorder: takes findings.
      save: writes a checkpoint; called by rank 0 alone.
      group: the learners that run this loop together.
      checkpoint_interval_s: seconds between checkpoints.
    """

    def __init__(
        self,
        learner: Learner,
        publish: Callable[[int, list[np.ndarray]], None],
        recorder: Recorder,
        save: Callable[[], None],
        group: LearnerGroup,
        checkpoint_interval_s: float,
    ) -> None:
        self._learner = learner
        self._publish = publish
        self._recorder = recorder
        self._save = save
        self._group = group
        self._checkpoint_interval_s = checkpoint_interval_s
        self._saved_at = time.monotonic()

    def run(self, batches: Iterator[Unroll | None], stop_requested: Callable[[], bool]) -> None:
        """Trains; writes a last row and a last checkpoint however it ends, short of an error.

        Args:
          batches: [B, ...]; None where there is none and the group must not wait for one.
          stop_requested: asked before every update.
        """
        learner = self._learner
        self._publish(learner.updates, learner.parameters())
        asked_at = time.monotonic()
        while not learner.done and (batch := next(batches, _NO_MORE)) is not _NO_MORE:
            idle_s = time.monotonic() - asked_at
            wishes = self._wishes(stop_requested())
            if batch is None:
                stats, agreed = None, learner.join(wishes)
            else:
                stats, agreed = learner.update(batch, wishes)
            self._recorder.record_update(stats, idle_s)
            self._publish(learner.updates, learner.parameters())
            if agreed.write_row or agreed.checkpoint:
                self._write_row()  # a checkpoint knows how far the rows go: none is left out
            if agreed.checkpoint:
                self._checkpoint()
            if agreed.stop:
                break
            asked_at = time.monotonic()
        self._write_row()
        self._checkpoint()

    def _wishes(self, stop: bool) -> Control:
        if self._group.rank != 0:
            return Control(stop, write_row=False, checkpoint=False)
        since = time.monotonic() - self._saved_at
        return Control(stop, self._recorder.row_due(), since >= self._checkpoint_interval_s)

    def _write_row(self) -> None:
        intervals = self._group.gather(self._recorder.interval())
        if self._group.rank == 0:
            self._recorder.write_row(intervals, self._learner)

    def _checkpoint(self) -> None:
        if self._group.rank == 0:
            self._save()
        self._saved_at = time.monotonic()
