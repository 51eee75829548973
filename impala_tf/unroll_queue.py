"""The bounded queue between the wire and the update, and the prefetch behind it."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf
import tree

from impala_tf.transport import QueueClosed
from impala_tf.types import Unroll


class UnrollQueue:
    """A TensorFlow FIFO queue of single unrolls.

    Args:
      specs: an Unroll of tf.TensorSpec without the leading dimension.
      capacity: unrolls held; a full queue makes `put` wait.
    """

    def __init__(self, specs: Unroll, capacity: int) -> None:
        self._specs = specs
        flat = tree.flatten(specs)
        self._queue = tf.queue.FIFOQueue(
            capacity, [spec.dtype for spec in flat], [spec.shape for spec in flat]
        )

    def put(self, unrolls: Unroll) -> None:
        """Adds N unrolls, arrays of leading dimension N; waits while the queue is full.

        Raises:
          QueueClosed: the queue was closed, before or while waiting.
        """
        try:
            self._queue.enqueue_many(tree.flatten(unrolls))
        except (tf.errors.CancelledError, tf.errors.AbortedError) as error:
            raise QueueClosed("the learner takes no more unrolls") from error

    def batches(self, batch_size: int) -> Iterator[Unroll]:
        """Yields batches [B, ...] until the queue is closed.

        One batch is made ahead by TensorFlow's own threads, so that the next one is ready when an
        update ends.
        """

        def dequeue(_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return tuple(self._queue.dequeue_many(batch_size))

        dataset = tf.data.Dataset.from_tensors(0).repeat().map(dequeue).prefetch(1)
        iterator = iter(dataset)
        while True:
            try:
                flat = next(iterator)
            except tf.errors.OpError:
                # TensorFlow reports a queue closed under its dequeue in more than one way.
                if not self._queue.is_closed():
                    raise
                return
            yield tree.unflatten_as(self._specs, list(flat))

    def size(self) -> int:
        """Returns how many unrolls wait."""
        return int(self._queue.size())

    def close(self) -> None:
        """Wakes whoever waits: `put` raises and `batches` ends once no whole batch is left."""
        self._queue.close(cancel_pending_enqueues=True)
