"""The bounded queue between the transport and the update, and the batches taken from it."""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, cast

import tensorflow as tf
import tree

from impala_tf.transport import QueueClosed
from impala_tf.types import Sent

S = TypeVar("S", bound=Sent)

_POLL_S = 0.2


class UnrollQueue(Generic[S]):
    """A TensorFlow FIFO queue of single unrolls, or of gradients.

    Args:
      specs: of what actors send, tf.TensorSpec without the leading dimension.
      capacity: unrolls held; `put` waits while the queue is full.
    """

    def __init__(self, specs: S, capacity: int) -> None:
        self._specs = specs
        flat = tree.flatten(specs)
        self._queue = tf.queue.FIFOQueue(
            capacity, [spec.dtype for spec in flat], [spec.shape for spec in flat]
        )

    def put(self, unrolls: S) -> None:
        """Adds N unrolls, arrays of leading dimension N; waits while the queue is full.

        Raises:
          QueueClosed: the queue was closed, before or during the call.
        """
        try:
            self._queue.enqueue_many(tree.flatten(unrolls))
        except (tf.errors.CancelledError, tf.errors.AbortedError) as error:
            raise QueueClosed("the learner takes no more unrolls") from error

    def take(self, batch_size: int) -> S:
        """Returns a batch [B, ...] of the oldest unrolls; waits until there are enough.

        Raises:
          QueueClosed: the queue was closed and holds no whole batch.
        """
        try:
            flat = self._queue.dequeue_many(batch_size)
        except tf.errors.OpError as error:
            # TensorFlow reports a queue that closes during the call in more than one way.
            if not self._queue.is_closed():
                raise
            raise QueueClosed("no whole batch is left") from error
        return cast(S, tree.unflatten_as(self._specs, list(flat)))

    def size(self) -> int:
        """Returns how many unrolls are in the queue."""
        return int(self._queue.size())

    def close(self) -> None:
        """Makes waiting `put` and `take` calls raise QueueClosed, once no whole batch is left."""
        self._queue.close(cancel_pending_enqueues=True)


def batches(queue: UnrollQueue[S], batch_size: int) -> Iterator[S]:
    """Yields batches [B, ...] until the queue is closed, taking one ahead of the update."""
    prefetcher = _Prefetcher(queue, batch_size)
    while True:
        try:
            yield prefetcher.get(timeout_s=None)
        except QueueClosed:
            return


def batches_or_none(
    queue: UnrollQueue[S],
    batch_size: int,
    patience_s: float,
    give_up: Callable[[], bool] = lambda: False,
) -> Iterator[S | None]:
    """Yields batches, and None if there was none for `patience_s` seconds or the queue is closed.

    For a learner in a group: the others wait for it in every update, so it must take part even
    without a batch. Never ends.

    Args:
      queue: of this learner.
      batch_size: B.
      patience_s: seconds to wait for a batch.
      give_up: if it returns True, None is yielded without waiting any longer.
    """
    prefetcher = _Prefetcher(queue, batch_size)
    asked_at = time.monotonic()
    while True:
        try:
            batch = prefetcher.get(timeout_s=_POLL_S)
        except queues.Empty:
            if time.monotonic() - asked_at < patience_s and not give_up():
                continue
            batch = None
        except QueueClosed:
            batch = None
        yield batch
        asked_at = time.monotonic()


class _Prefetcher(Generic[S]):
    """A thread that takes one batch ahead: more would only make the batches staler."""

    def __init__(self, queue: UnrollQueue[S], batch_size: int) -> None:
        self._queue = queue
        self._batch_size = batch_size
        self._wanted = threading.Semaphore(1)
        self._taken: queues.SimpleQueue[S | Exception] = queues.SimpleQueue()
        threading.Thread(target=self._run, name="batches", daemon=True).start()

    def get(self, timeout_s: float | None) -> S:
        """Returns the next batch. Raises queue.Empty after `timeout_s`, or what `take` raised."""
        found = self._taken.get(timeout=timeout_s)
        if isinstance(found, Exception):
            self._taken.put(found)  # for the next call
            raise found
        self._wanted.release()
        return found

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            try:
                self._taken.put(self._queue.take(self._batch_size))
            except Exception as failure:
                self._taken.put(failure)
                return
