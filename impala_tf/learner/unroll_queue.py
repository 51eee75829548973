"""The bounded queue between the transport and the update, and the batches taken from it."""

from __future__ import annotations

import queue as queues
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import numpy as np
import tensorflow as tf
import tree

from impala_tf.transport import QueueClosed
from impala_tf.types import Sent

S = TypeVar("S", bound=Sent)


class UnrollQueue(Generic[S]):
    """A TensorFlow FIFO queue of single unrolls, or of gradients.

    Args:
      specs: what actors send, as tf.TensorSpec without the leading dimension.
      capacity: how many unrolls it holds; `put` waits while the queue is full.
    """

    def __init__(self, specs: S, capacity: int) -> None:
        self._specs = specs
        flat = tree.flatten(specs)
        self._queue = tf.queue.FIFOQueue(
            capacity, [spec.dtype for spec in flat], [spec.shape for spec in flat]
        )

    def put(self, unrolls: S) -> None:
        """Adds N unrolls, arrays [N, ...]; waits while the queue is full.

        Raises:
          QueueClosed: the queue was closed, before or during the call.
        """
        try:
            with tf.device("CPU"):  # else TensorFlow would copy them to a GPU and back
                self._queue.enqueue_many(tree.flatten(unrolls))
        except (tf.errors.CancelledError, tf.errors.AbortedError) as error:
            raise QueueClosed("the learner takes no more unrolls") from error

    def take(self, count: int) -> S:
        """Returns the `count` oldest unrolls, [count, ...]; waits until there are enough.

        Raises:
          QueueClosed: the queue was closed and holds fewer.
        """
        try:
            flat = self._queue.dequeue_many(count)
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
        """Closes the queue: `put` raises QueueClosed, and so does `take` when too few are left."""
        self._queue.close(cancel_pending_enqueues=True)


class Batches(Generic[S]):
    """A thread that takes one batch ahead. More would only make batches staler.

    Where only unrolls of the newest parameters are used, it takes a batch only when asked.

    Args:
      queue: the learner's queue.
      batch_size: B.
      newest_version: returns the learner's parameter_version, if batches may hold only unrolls of
        that version: older ones are dropped. None: all versions are used.
      on_stale: called with the number of dropped unrolls.

    Attributes:
      closed: whether this was closed, or the queue was closed and no whole batch is left.
    """

    def __init__(
        self,
        queue: UnrollQueue[S],
        batch_size: int,
        newest_version: Callable[[], int] | None = None,
        on_stale: Callable[[int], None] = lambda num_unrolls: None,
    ) -> None:
        self.closed = False
        self._queue, self._batch_size = queue, batch_size
        self._newest_version, self._on_stale = newest_version, on_stale
        self._is_asked = newest_version is None
        self._wanted = threading.Semaphore(int(self._is_asked))
        self._taken: queues.SimpleQueue[S | Exception] = queues.SimpleQueue()
        threading.Thread(target=self._run, name="batches", daemon=True).start()

    def get(self, timeout_s: float) -> S | None:
        """Returns the next batch [B, ...]; None if none comes within `timeout_s`, or it is closed.

        Raises whatever `UnrollQueue.take` raised, except QueueClosed.
        """
        while not self.closed:
            self._ask()
            try:
                batch = self._taken.get(timeout=timeout_s)
            except queues.Empty:
                return None
            if isinstance(batch, QueueClosed):
                self.closed = True
                return None
            if isinstance(batch, Exception):
                raise batch
            self._is_asked = False
            if self._newest_version is None:
                self._ask()
                return batch
            # Since it was taken, the group may have updated without this learner's batch.
            if len(self._fresh_rows(batch)) == self._batch_size:
                return batch
            self._on_stale(self._batch_size)
        return None

    def close(self) -> None:
        """Makes `get` return None from now on, even if it is waiting. The queue stays open."""
        self._taken.put(QueueClosed("no batch is wanted any more"))
        self.closed = True

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            self._wanted.release()

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            try:
                self._taken.put(self._take())
            except Exception as failure:
                self._taken.put(failure)
                return

    def _take(self) -> S:
        batch = self._queue.take(self._batch_size)
        # During the wait for more, unrolls that were already taken may have become stale.
        while missing := self._batch_size - len(rows := self._fresh_rows(batch)):
            self._on_stale(missing)
            more = self._queue.take(missing)
            with tf.device("CPU"):
                kept = tree.map_structure(lambda part, fresh=rows: tf.gather(part, fresh), batch)
                batch = tree.map_structure(lambda *parts: tf.concat(parts, axis=0), kept, more)
        return batch

    def _fresh_rows(self, batch: S) -> np.ndarray:
        versions = batch.parameter_version.numpy()
        newest = versions if self._newest_version is None else self._newest_version()
        return np.flatnonzero(versions == newest)
