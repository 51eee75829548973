"""What minibatches need of their whole batch, made before the batch's first step."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from impala_tf.config import OptimizerConfig
from impala_tf.learner.transitions import Transitions
from impala_tf.types import Nest, Unroll

# Of fewer agent steps at a time, what starts the operations would take longer than they do. Those
# of images are longer, and their activations much larger: up to a MB for each step.
_FEW_IMAGES, _FEW_STEPS = 512, 4096


class Preparation:
    """Runs the network on some unrolls after others, and estimates from the steps of all.

    Batches grow with the number of actors, and their activations would, too. So no group of unrolls
    is larger than what a gradient step learns from at a time, unless that is few steps.

    Args:
      steps_of: takes an Unroll [b, ...]; returns its Transitions. Unrolls do not depend on others.
      estimate: takes the Transitions of the whole batch; returns what its minibatches need,
        float32 [B, T] each.
      optimizer: says how large minibatches are.
    """

    def __init__(
        self,
        steps_of: Callable[[Unroll], Transitions],
        estimate: Callable[[Transitions], Nest],
        optimizer: OptimizerConfig,
    ) -> None:
        def of_group(batch: Unroll, begin: tf.Tensor, size: int) -> Transitions:
            return steps_of(tf.nest.map_structure(lambda each: _rows(each, begin, size), batch))

        self._of_group = tf.function(of_group, autograph=False)
        self._estimate = tf.function(estimate, autograph=False)
        self._groups = (optimizer.minibatches or 1) * optimizer.micro_batches
        self._unroll_length = optimizer.unroll_length

    def __call__(self, batch: Unroll) -> Nest:
        """Returns what the minibatches of a batch [B, ...] need."""
        size, groups = len(batch.parameter_version), self._groups_of(batch)
        # Of at most two sizes: each of them makes a graph.
        ends = [size * number // groups for number in range(groups + 1)]
        found = [
            self._of_group(batch, tf.constant(begin), end - begin)
            for begin, end in zip(ends, ends[1:], strict=False)
        ]
        # Unrolls are the last dimension of every field.
        joined = [tf.concat(parts, axis=-1) for parts in zip(*found, strict=True)]
        return self._estimate(Transitions(*joined))

    def _groups_of(self, batch: Unroll) -> int:
        size = len(batch.parameter_version)
        seen = tf.nest.flatten(batch.env_outputs.observation)
        few = _FEW_IMAGES if any(part.dtype == tf.uint8 for part in seen) else _FEW_STEPS
        most = size * self._unroll_length // few
        return max(1, min(self._groups, size, most))


def _rows(tensor: tf.Tensor, begin: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `size` rows, which is known when the graph is made."""
    rest = tensor.shape[1:]
    return tf.slice(tensor, [begin, *[0] * len(rest)], [size, *rest])
