"""Estimates of a whole batch for its minibatches, made before the batch's first gradient step."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from impala_tf.config import OptimizerConfig
from impala_tf.learner.transitions import Transitions
from impala_tf.types import Nest, Unroll

# With fewer agent steps at a time, launching operations would take longer than running them.
# Operations on images run longer, and their activations are much larger: up to a MB per step.
_FEW_IMAGES, _FEW_STEPS = 512, 4096


class Preparation:
    """Runs the network on one group of unrolls at a time, then estimates from the steps of all.

    Batches grow with the number of actors, and so would their activations. So a group is not larger
    than a part of a minibatch (see --micro_batches), unless that has very few steps.

    Args:
      steps_of: takes an Unroll [b, ...]; returns its Transitions. Unrolls must be independent.
      estimate: takes the Transitions of the whole batch; returns what its minibatches need,
        float32 [B, T] each.
      optimizer: the optimizer's flags, which give the size of minibatches.
    """

    def __init__(
        self,
        steps_of: Callable[[Unroll], Transitions],
        estimate: Callable[[Transitions], Nest],
        optimizer: OptimizerConfig,
    ) -> None:
        def of_group(batch: Unroll, begin: tf.Tensor, size: int) -> Transitions:
            return steps_of(tf.nest.map_structure(lambda array: _rows(array, begin, size), batch))

        self._of_group = tf.function(of_group, autograph=False)
        self._estimate = tf.function(estimate, autograph=False)
        self._groups = (optimizer.minibatches or 1) * optimizer.micro_batches
        self._unroll_length = optimizer.unroll_length

    def __call__(self, batch: Unroll) -> Nest:
        """Returns what the minibatches of a batch [B, ...] need, float32 [B, T] each."""
        size, groups = len(batch.parameter_version), self._groups_of(batch)
        # Groups have at most two sizes, because each size needs its own graph.
        ends = [size * number // groups for number in range(groups + 1)]
        transitions = [
            self._of_group(batch, tf.constant(begin), end - begin)
            for begin, end in zip(ends, ends[1:], strict=False)
        ]
        # The last dimension of every field is that of unrolls.
        joined = [tf.concat(parts, axis=-1) for parts in zip(*transitions, strict=True)]
        return self._estimate(Transitions(*joined))

    def _groups_of(self, batch: Unroll) -> int:
        size = len(batch.parameter_version)
        parts = tf.nest.flatten(batch.env_outputs.observation)
        fewest_steps = _FEW_IMAGES if any(part.dtype == tf.uint8 for part in parts) else _FEW_STEPS
        most_groups = size * self._unroll_length // fewest_steps
        return max(1, min(self._groups, size, most_groups))


def _rows(tensor: tf.Tensor, begin: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `size` rows from `begin`; `size` is known when the graph is built."""
    rest = tensor.shape[1:]
    return tf.slice(tensor, [begin, *[0] * len(rest)], [size, *rest])
