"""What actors send, from its arrival to a batch: it is checked, marked with its actor, and queued.

One bad number would poison every parameter.
"""

from __future__ import annotations

import itertools
import logging
import queue as queues
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast

import numpy as np
import tensorflow as tf
import tree

from impala_tf.config import Config, algorithm, waits_for_updates
from impala_tf.environments.observations import parts_of
from impala_tf.environments.spaces import WORD_BUCKETS
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.monitoring.recorder import RunRecorder
from impala_tf.monitoring.status_file import FOR_USER
from impala_tf.transport import QueueClosed, RefusedUnroll, RefusedVersion, StaleUnroll
from impala_tf.types import (
    LARGEST,
    LARGEST_REWARD,
    ActorGradient,
    ActorReport,
    EnvironmentSpec,
    EnvOutput,
    Episode,
    Sent,
    Unroll,
)

MAX_POLICY_LAG = 1000
"""Learners refuse unrolls whose parameters are older than this many updates, such as those of an
actor that was stopped for a while. All gradient steps for a batch count as one update."""
REFUSED_S = 60.0
_ABSURD = 1e9
"""Gradients overflow only with numbers that are much larger. No usual level has any beyond it."""

_log = logging.getLogger("impala_tf.learner")
S = TypeVar("S", bound=Sent)


class Inspector:
    """Refuses unrolls and gradients that would harm training.

    Args:
      spec: the level's specification.
      config: the run's config.
    """

    def __init__(self, spec: EnvironmentSpec, config: Config) -> None:
        self._spec, optimizer = spec, config.optimizer
        # For a replay, old steps are as good as new ones.
        self._any_age = algorithm(config.loss.algorithm).replays
        self._steps_per_batch = optimizer.updates_per_batch * optimizer.minibatches
        self._most_played = optimizer.batch_size * optimizer.unroll_length

    def check(self, sent: Sent, parameter_version: int) -> None:
        """Checks what an actor sent.

        Args:
          sent: arrays [N, ...], whose shapes and dtypes are known to be right.
          parameter_version: the learner's current version.

        Raises:
          RefusedVersion: the parameter version is too old, or unknown.
          RefusedUnroll: something else is wrong; the message says what.
        """
        self._check_version(sent.parameter_version, parameter_version)
        for name, array in _floats(sent):
            most = LARGEST_REWARD if name == "env_outputs.reward" else LARGEST
            # Comparisons with NaN are false.
            if array.size and not (array.min() >= -most and array.max() <= most):
                raise RefusedUnroll(f"{name}: NaN, infinite or beyond {most:g}")
        if isinstance(sent, ActorGradient):
            _check_range("num_played", sent.num_played, self._most_played + 1)
        else:
            self._check_unroll(sent)

    def _check_unroll(self, unroll: Unroll) -> None:
        if not isinstance(unroll.td_errors, tuple) and unroll.td_errors.min() < 0:
            raise RefusedUnroll("td_errors: below 0")
        _check_actions(self._spec, "action", unroll.agent_outputs.action)
        check_steps(self._spec, unroll.env_outputs)
        _check_range("level", unroll.level, len(self._spec.levels))

    def _check_version(self, versions: np.ndarray, current: int) -> None:
        lowest, highest = int(versions.min()), int(versions.max())
        if lowest < 0 or highest > current:
            raise RefusedVersion(
                f"made with parameters of version {highest if highest > current else lowest}; the"
                f" learner, which may have resumed from a checkpoint, has {current}"
            )
        lag = (current - lowest) // self._steps_per_batch
        if lag > MAX_POLICY_LAG and not self._any_age:
            raise RefusedVersion(
                f"made with parameters that are {lag} updates old; the limit is {MAX_POLICY_LAG}"
            )


def check_steps(spec: EnvironmentSpec, env_outputs: EnvOutput) -> None:
    """Checks indices that a network looks up: a wrong one would make the whole batch fail.

    Args:
      spec: the level's specification.
      env_outputs: arrays [N, ...] of steps, in any layout, whose shapes and dtypes are known to be
        right.

    Raises:
      RefusedUnroll: an index is out of range; the message says which.
    """
    _check_actions(spec, "last_action", env_outputs.last_action)
    observation = parts_of(env_outputs.observation)
    for name, part in parts_of(spec.observation).items():
        if part.kind == "text":
            _check_range(f"observation {name}, words", observation[name], WORD_BUCKETS + 1)


def _check_actions(spec: EnvironmentSpec, name: str, actions: np.ndarray) -> None:
    if spec.actions.kind == "discrete":
        _check_range(name, actions, spec.actions.sizes[0])
    elif spec.actions.kind == "multi_discrete":
        for index, size in enumerate(spec.actions.sizes):
            _check_range(f"{name} {index}", actions[..., index], size)


def _floats(sent: Sent) -> Iterator[tuple[str, np.ndarray]]:
    for path, array in tree.flatten_with_path(sent):
        if array.dtype.kind == "f":
            yield ".".join(map(str, path)), array


def _check_range(name: str, values: np.ndarray, size: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= size):
        raise RefusedUnroll(f"{name}: from {values.min()} to {values.max()}, but there are {size}")


class Senders:
    """Marks what arrives with its actor, and finds out who sent what an update was skipped for.

    Args:
      clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}  # by name, in the order of the actors' first unrolls
        self._refused_until: dict[str, float] = {}

    def admit(self, actor: str) -> int:
        """Returns the number that marks an actor's unrolls (see `Unroll.actor`). Thread-safe.

        Raises:
          RefusedUnroll: an update was skipped for what it has sent, less than a minute ago.
        """
        if self._clock() < self._refused_until.get(actor, 0.0):
            raise RefusedUnroll(
                f"gradients of earlier ones were not finite; none is taken for {REFUSED_S:.0f} s"
            )
        with self._lock:
            return self._numbers.setdefault(actor, len(self._numbers))

    def explain(self, minibatch: Any, group: LearnerGroup) -> bool:
        """Names and refuses the actors that a skipped gradient step is due to.

        All learners call it together. Rows with absurd numbers explain the step, unless all actors
        send such rows: then it is the level, or the training itself.

        Args:
          minibatch: this learner's part of the step's input; None: it had none.
          group: the learners.

        Returns:
          whether it is explained.
        """
        everyones = group.gather([*self._actors_in(minibatch), len(self._numbers)])
        guilty, present = (
            sorted(set(itertools.chain(*(found[part] for found in everyones)))) for part in (0, 1)
        )
        known = sum(found[2] for found in everyones)
        if not guilty or known == 1 or (guilty == present and len(guilty) > 1):
            _log.warning("a gradient is not finite; in its batch: %s", ", ".join(present) or "none")
            return False
        for actor in guilty:
            is_first = actor not in self._refused_until
            self._refused_until[actor] = self._clock() + REFUSED_S
            if is_first:
                _log.warning(
                    "%s: an update was skipped, as numbers that it sent gave gradients that are not"
                    " finite; its unrolls are refused for %.0f s, and again if it happens again",
                    actor,
                    REFUSED_S,
                    extra=FOR_USER,
                )
        return True

    def _actors_in(self, minibatch: Any) -> tuple[list[str], list[str]]:
        """Returns the actors with absurd rows [b, ...], and all actors; neither if not marked."""
        marks = np.asarray(getattr(getattr(minibatch, "unrolls", minibatch), "actor", ()), int)
        is_absurd = np.zeros(len(marks), bool)
        for part in tree.flatten(minibatch) if len(marks) else ():
            if (array := np.asarray(part)).dtype.kind == "f" and array.size:
                rows = np.abs(array).reshape(len(marks), -1).max(axis=1)
                is_absurd |= ~(rows <= _ABSURD)  # comparisons with NaN are false
        names = list(self._numbers)
        return [names[mark] for mark in set(marks[is_absurd])], [names[mark] for mark in set(marks)]


def unmarked(minibatch: Any) -> Any:
    """Returns the input of a gradient step without the numbers of its actors, if it has any."""
    if hasattr(minibatch, "unrolls"):
        return minibatch._replace(unrolls=unmarked(minibatch.unrolls))
    return minibatch._replace(actor=()) if hasattr(minibatch, "actor") else minibatch


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


class Intake:
    """Takes what actors push into the queue.

    Where actors wait for updates, unrolls of older parameters are stale. They come from actors that
    waited so long that their unrolls filled in for a lost actor's; with them, every later batch
    would be late. `Batches` drops unrolls that become stale in the queue.

    Args:
      spec: the level's specification.
      config: the run's config.
      senders: the actors that may send.
      queue: the learner's queue.
      recorder: records games and statistics.
      newest_version: returns the learner's parameter_version.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        config: Config,
        senders: Senders,
        queue: UnrollQueue[Sent],
        recorder: RunRecorder,
        newest_version: Callable[[], int],
    ) -> None:
        self._inspector, self._waits = Inspector(spec, config), waits_for_updates(config)
        self._senders, self._queue, self._recorder = senders, queue, recorder
        self._newest_version = newest_version

    def put(self, sent: Sent, actor: str, episodes: list[Episode], report: ActorReport) -> None:
        """Accepts and records unrolls or gradients, or refuses them; see `transport.Put`."""
        version, num_unrolls = self._newest_version(), len(sent.parameter_version)
        number = self._senders.admit(actor)
        try:
            self._inspector.check(sent, version)
            if self._waits and sent.parameter_version.max() != version:
                self._recorder.record_stale(num_unrolls)
                raise StaleUnroll("stale: the learner has newer parameters by now")
        except (RefusedVersion, StaleUnroll):
            self._recorder.record_episodes(episodes)  # the games were played
            raise
        self._queue.put(sent._replace(actor=np.full(num_unrolls, number, np.int32)))
        self._recorder.record_episodes(episodes)
        self._recorder.record_actor(report)
