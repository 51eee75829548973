"""How dqn uses what arrives: into a replay, from which steps are drawn at a fixed ratio."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.algorithms.dqn import arrays, buffer
from impala_tf.algorithms.dqn.buffer import ReplayBuffer, Sample
from impala_tf.config import Config, replay_bytes
from impala_tf.learner.step import GradientStep
from impala_tf.learner.transitions import BatchUses
from impala_tf.logdir import Logdir
from impala_tf.types import EnvironmentSpec, Nest, Unroll

_log = logging.getLogger("impala_tf.learner")


class Replayed(BatchUses):
    """Batches go into a replay, and steps are drawn from it, at a fixed ratio.

    Args:
      replay: what was kept of an earlier run counts.
      config: the run's.
      kept_steps: agent steps in the replay of that learner of the group which has fewest.

    Attributes:
      replay: this learner's.
    """

    def __init__(self, replay: ReplayBuffer, config: Config, kept_steps: int) -> None:
        self.replay = replay
        self._batch_size = config.replay.replay_batch_size
        self._steps_per_batch = config.optimizer.batch_size * config.optimizer.unroll_length
        self._ratio = config.replay.replay_ratio
        # All learners count alike, so that they begin at the same arrival.
        self._missing = config.replay.replay_start_steps - kept_steps
        self._owed = 0.0  # gradient steps
        self._drawn = np.empty(0, np.int64)

    @property
    def missing_steps(self) -> int:  # type: ignore[override]  # read only
        """Agent steps that have to arrive before anything is learned."""
        return max(0, self._missing)

    def arrival(self, batch: Unroll | None, learners: int) -> Iterator[tuple[Sample | None, int]]:
        """Yields samples, once there are enough steps; None if the batch is missing."""
        if batch is not None:
            self.replay.add(tree.map_structure(np.asarray, batch))
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
                # A compiled step takes half a millisecond longer with arrays.
                yield tree.map_structure(tf.constant, sample), learners

    def learned(self, td_errors: Nest) -> None:
        """Makes the errors the priorities of what was drawn."""
        self.replay.set_errors(self._drawn, td_errors.numpy())


def replayed(step: GradientStep, spec: EnvironmentSpec, config: Config) -> Replayed:
    """Returns a learner's replay; with --save_replay, in files that a resumed run finds again.

    Raises:
      ConfigError: the files cannot be made.
    """
    number = step.group.members[step.group.rank]
    specs = unroll_specs(step.agent, spec, config.optimizer.unroll_length)
    make_array: arrays.MakeArray = arrays.in_memory
    if config.replay.save_replay:
        header, nbytes = buffer.header(config, specs), replay_bytes(config, spec)
        folder = Logdir(Path(config.run.logdir)).replay(number)
        make_array = arrays.in_files(folder, header, nbytes)
    # Each learner draws other steps.
    seed = np.random.SeedSequence(config.run.seed, spawn_key=(number,) if number else ())
    replay = ReplayBuffer(specs, step.layout, config, seed, make_array)
    if replay.steps:
        _log.info("replay: %s agent steps are there from before", f"{replay.steps:,}")
    return Replayed(replay, config, min(step.group.gather(replay.steps)))
