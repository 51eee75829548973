"""How dqn uses batches: it stores them, and draws steps from the replay buffer at a fixed ratio."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.algorithms.dqn.buffer import ReplayBuffer, Sample
from impala_tf.config import Config
from impala_tf.learner.batch_uses import BatchUses
from impala_tf.learner.gradient_step import GradientStep
from impala_tf.types import EnvironmentSpec, Nest, Unroll


class Replayed(BatchUses):
    """Batches go into a replay buffer, and gradient steps draw from it at a fixed ratio.

    Args:
      replay: this learner's replay buffer, empty.
      config: the run's config.

    Attributes:
      replay: as given.
    """

    def __init__(self, replay: ReplayBuffer, config: Config) -> None:
        self.replay = replay
        self._batch_size = config.replay.replay_batch_size
        self._steps_per_batch = config.optimizer.batch_size * config.optimizer.unroll_length
        self._ratio = config.replay.replay_ratio
        self._missing = config.replay.replay_start_steps
        self._owed = 0.0  # gradient steps that are due
        self._drawn = np.empty(0, np.int64)

    @property
    def missing_steps(self) -> int:  # type: ignore[override]  # read only
        """The number of agent steps that must still arrive before learning starts."""
        return max(0, self._missing)

    def arrival(self, batch: Unroll | None, learners: int) -> Iterator[tuple[Sample | None, int]]:
        """Yields samples once there are enough steps; yields None for them if `batch` is None."""
        if batch is not None:
            self.replay.add(tree.map_structure(np.asarray, batch._replace(actor=())))
        self._missing -= self._steps_per_batch
        if self._missing > 0:
            return
        self._owed += self._ratio * self._steps_per_batch
        while self._owed >= 1.0:
            self._owed -= 1.0
            if batch is None:
                yield None, learners
            else:
                self._drawn, sample = self.replay.draw(self._batch_size)
                # With NumPy arrays, a compiled step takes half a millisecond longer.
                yield tree.map_structure(tf.constant, sample), learners

    def learned(self, td_errors: Nest) -> None:
        """Sets the priorities of the last sample from its TD errors."""
        self.replay.set_errors(self._drawn, td_errors.numpy())


def replayed(step: GradientStep, spec: EnvironmentSpec, config: Config) -> Replayed:
    """Returns a learner's replay, which is empty.

    Args:
      step: the learner's gradient step.
      spec: the level's specification.
      config: the run's config.
    """
    number = step.group.members[step.group.rank]
    specs = unroll_specs(step.agent, spec, config.optimizer.unroll_length)
    # Learners must not draw the same random numbers.
    seed = np.random.SeedSequence(config.run.seed, spawn_key=(number,) if number else ())
    return Replayed(ReplayBuffer(specs, step.layout, config, seed), config)
