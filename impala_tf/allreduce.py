"""How learners act as one: the group interface, and the group of a single learner."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf


class LearnerGroup(Protocol):
    """What a learner asks of the others; all must make the same calls in the same order."""

    rank: int  # 0 writes checkpoints and metrics
    size: int  # learners in the group

    def mean_and_sum(
        self, gradients: list[tf.Tensor], control: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the mean of the gradients and the sum of the control vectors of all learners.

        Called inside the update's graph, once an update.
        """

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Gives every learner rank 0's values."""

    def gather(self, value: Any) -> list[Any]:
        """Returns every learner's JSON-able value, by rank."""


class SingleLearner:
    """A group of one."""

    rank = 0
    size = 1

    def mean_and_sum(
        self, gradients: list[tf.Tensor], control: tf.Tensor
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns its arguments."""
        return gradients, control

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Does nothing."""

    def gather(self, value: Any) -> list[Any]:
        """Returns [value]."""
        return [value]
