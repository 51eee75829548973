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
      capacity: unrolls held; `put` waits while the queue is full.
      newest_version: returns the learner's parameter_version, if batches may hold only what was
        made with it: what is older is dropped when it is taken. None: everything is taken.
      on_stale: called with the number of unrolls that were dropped.

    Attributes:
      drops_stale: whether there is a `newest_version`.
    """

    def __init__(
        self,
        specs: S,
        capacity: int,
        newest_version: Callable[[], int] | None = None,
        on_stale: Callable[[int], None] = lambda num_unrolls: None,
    ) -> None:
        self._specs = specs
        self._newest_version = newest_version
        self._on_stale = on_stale
        self.drops_stale = newest_version is not None
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
            with tf.device("CPU"):  # otherwise they would go to a GPU and back
                self._queue.enqueue_many(tree.flatten(unrolls))
        except (tf.errors.CancelledError, tf.errors.AbortedError) as error:
            raise QueueClosed("the learner takes no more unrolls") from error

    def take(self, batch_size: int) -> S:
        """Returns a batch [B, ...] of the oldest unrolls; waits until there are enough.

        Raises:
          QueueClosed: the queue was closed and holds no whole batch.
        """
        batch = self._dequeue(batch_size)
        # While it waited for more, what it had may have become stale.
        while len(rows := self._fresh_rows(batch)) < batch_size:
            self._on_stale(batch_size - len(rows))
            more = self._dequeue(batch_size - len(rows))
            with tf.device("CPU"):
                kept = tree.map_structure(lambda part, fresh=rows: tf.gather(part, fresh), batch)
                batch = tree.map_structure(lambda *parts: tf.concat(parts, axis=0), kept, more)
        return batch

    def drops(self, batch: S) -> bool:
        """Returns whether a batch became stale after it was taken; counts it as dropped then."""
        is_stale = len(self._fresh_rows(batch)) < len(batch.parameter_version)
        if is_stale:
            self._on_stale(len(batch.parameter_version))
        return is_stale

    def _fresh_rows(self, batch: S) -> np.ndarray:
        versions = batch.parameter_version.numpy()
        if self._newest_version is None:
            return np.arange(len(versions))
        return np.flatnonzero(versions == self._newest_version())

    def _dequeue(self, batch_size: int) -> S:
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


class Batches(Generic[S]):
    """A thread that takes one batch ahead: more would only make the batches staler.

    From a queue that drops what is stale, it takes a batch when it is asked for one.

    Args:
      queue: the learner's.
      batch_size: B.

    Attributes:
      closed: whether this was closed; or the queue was, and no whole batch is left.
    """

    def __init__(self, queue: UnrollQueue[S], batch_size: int) -> None:
        self.closed = False
        self._queue = queue
        self._batch_size = batch_size
        self._takes_ahead = not queue.drops_stale
        self._is_asked = self._takes_ahead
        self._wanted = threading.Semaphore(int(self._takes_ahead))
        self._taken: queues.SimpleQueue[S | Exception] = queues.SimpleQueue()
        threading.Thread(target=self._run, name="batches", daemon=True).start()

    def get(self, timeout_s: float) -> S | None:
        """Returns the next batch [B, ...]; None: there is none after `timeout_s`, or it is closed.

        Raises what `UnrollQueue.take` raised, if that is not QueueClosed.
        """
        while not self.closed:
            self._ask()
            try:
                found = self._taken.get(timeout=timeout_s)
            except queues.Empty:
                return None
            if isinstance(found, QueueClosed):
                self.closed = True
                return None
            if isinstance(found, Exception):
                raise found
            self._is_asked = False
            if self._takes_ahead:
                self._ask()
                return found
            # The group may have had an update without this learner's batch since it was taken.
            if not self._queue.drops(found):
                return found
        return None

    def close(self) -> None:
        """Lets `get` return None from now on, also a call that waits; the queue stays open."""
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
                self._taken.put(self._queue.take(self._batch_size))
            except Exception as failure:
                self._taken.put(failure)
                return
