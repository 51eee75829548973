"""The bounded queue between the wire and the update, and the prefetch behind it."""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow as tf
import tree

from impala_tf.transport import QueueClosed
from impala_tf.types import Unroll

_POLL_S = 0.2


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
        # Nothing is to be tuned, and the tuner's thread may sleep on when the iterator is deleted:
        # now and then, a stop took ten seconds.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = dataset.with_options(options)
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


def without_waiting(
    batches: Iterator[Unroll], patience_s: float, hurry: Callable[[], bool] = lambda: False
) -> Iterator[Unroll | None]:
    """Yields batches, and None whenever none came for `patience_s` seconds or none will come.

    For a learner in a group: the others wait for it in every update, so it must take part even
    without a batch. Never ends; raises what `batches` raises. There is no patience while `hurry`
    says so.
    """
    ready: queues.Queue[Unroll | Exception] = queues.Queue(maxsize=1)

    def fetch() -> None:
        try:
            for batch in batches:
                ready.put(batch)
        except Exception as failure:
            ready.put(failure)

    thread = threading.Thread(target=fetch, name="batches", daemon=True)
    thread.start()
    asked_at = time.monotonic()
    while True:
        try:
            found = ready.get(timeout=_POLL_S)
        except queues.Empty:
            waited_s = time.monotonic() - asked_at
            if waited_s < patience_s and thread.is_alive() and not hurry():
                continue
            yield None
        else:
            if isinstance(found, Exception):
                raise found
            yield found
        asked_at = time.monotonic()
