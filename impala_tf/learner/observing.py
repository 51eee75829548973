"""Adds arriving observations to the statistics that normalise them."""

from __future__ import annotations

import tensorflow as tf

from impala_tf.agents import inputs
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.statistics import DictStatistics, Moments, PartStatistics
from impala_tf.types import EnvOutput, Unroll


class Observer:
    """Adds the observations of all learners to each learner's statistics, which stay equal.

    Args:
      statistics: the statistics of all or some parts of an observation.
      layout: the layout of the level's observations.
      group: the group of learners.
    """

    def __init__(
        self,
        statistics: PartStatistics | DictStatistics,
        layout: ObservationLayout,
        group: LearnerGroup,
    ) -> None:
        self._statistics = statistics
        self._layout = layout
        self._group = group
        self._moments = tf.function(self._moments_of, autograph=False)
        self._add_moments = tf.function(statistics.add, autograph=False)

    def compile(self, unrolls: Unroll) -> None:
        """Builds the graph now, for an Unroll [B, ...] of tf.TensorSpec."""
        self._moments.get_concrete_function(unrolls.env_outputs)

    def observe(self, batch: Unroll | None) -> None:
        """Adds each learner's batch. All learners of a group must call it together.

        Args:
          batch: an Unroll [B, ...]; None: this learner has none.
        """
        own = self._statistics.no_moments() if batch is None else self._moments(batch.env_outputs)
        # Moments about different means cannot be summed, so each learner fills its own row.
        own_row = [rank == self._group.rank for rank in range(self._group.size)]
        rows = tf.nest.map_structure(
            lambda part: tf.stack([part if is_own else tf.zeros_like(part) for is_own in own_row]),
            own,
        )
        self._add_moments(self._group.sum(rows, name="observations"))

    def _moments_of(self, env_outputs: EnvOutput) -> list[Moments]:
        """Returns the moments of the observations of unrolls [B, T + 1, ...]."""
        observation = inputs.time_major(self._layout, env_outputs).observation
        # The last step of an unroll is also the first of the next one: count it only once.
        return self._statistics.moments(tf.nest.map_structure(lambda part: part[:-1], observation))
