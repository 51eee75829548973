"""How often, and in which order, batches are learned from, or steps of a replay.

All learners of a group take the same gradient steps at every arrival. One that has no batch takes
part with nothing, so that the other learners' gradients count alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
import tree

from impala_tf.config import Config
from impala_tf.learner.replay.buffer import ReplayBuffer, Sample
from impala_tf.types import ActorGradient, Nest, Unroll


class Minibatch(NamedTuple):
    """What one gradient step learns from."""

    unrolls: Unroll  # [b, ...]
    prepared: Nest  # float32 [b, T] each: what ppo computed before its first step; else ()


class BatchUses(Protocol):
    """Decides which gradient steps follow the arrival of a batch."""

    def arrival(self, batch: Any, learners: int) -> Iterator[tuple[Any, int]]:
        """Yields what each gradient step learns from, and how many learners have something.

        The first is a `Minibatch`, `ActorGradient` or `Sample`, or None if this learner has none.

        Args:
          batch: Unroll [B, ...], or ActorGradient; None if this learner has none, which makes no
            step fewer.
          learners: how many have a batch now.
        """

    def learned(self, td_errors: Nest) -> None:
        """Takes the errors of what was yielded last, if the step was taken (see `StepResult`)."""


class _NotByErrors:
    def learned(self, td_errors: Nest) -> None:
        """Does nothing: what comes next does not depend on errors."""


class Repeated(_NotByErrors):
    """Every batch is used several times in a row."""

    def __init__(self, uses: int) -> None:
        self._uses = uses

    def arrival(
        self, batch: Unroll | None, learners: int
    ) -> Iterator[tuple[Minibatch | None, int]]:
        """Yields the batch again and again."""
        for _ in range(self._uses):
            yield _whole(batch), learners


class Once(_NotByErrors):
    """A gradient of an actor is used as it is."""

    def arrival(
        self, batch: ActorGradient | None, learners: int
    ) -> Iterator[tuple[ActorGradient | None, int]]:
        """Yields it."""
        yield batch, learners


class Ring(_NotByErrors):
    """The uses of a batch are spread evenly over the arrivals of later ones.

    With 2 uses and a ring of 4, a batch is used when it arrives and when the third one after it
    arrives. A new ring (of a resumed run, too) takes fewer steps until it is full.
    """

    def __init__(self, uses: int, capacity: int) -> None:
        self._ages = [use * (capacity - 1) // max(uses - 1, 1) for use in range(uses)]
        # Newest first, with the number of learners that had one of the same age.
        self._batches: list[tuple[Unroll | None, int]] = []

    def arrival(
        self, batch: Unroll | None, learners: int
    ) -> Iterator[tuple[Minibatch | None, int]]:
        """Yields the new batch, then older ones."""
        self._batches = [(batch, learners), *self._batches[: self._ages[-1]]]
        for age in self._ages[: 1 + sum(age < len(self._batches) for age in self._ages[1:])]:
            used, learners = self._batches[age]
            yield _whole(used), learners


class Epochs(_NotByErrors):
    """Every batch is prepared, then used in several epochs of shuffled minibatches.

    Args:
      prepare: returns what the steps need of the whole batch, [B, T] each.
      epochs: how often the batch is used.
      minibatches: parts of whole unrolls that it is split into.
      seed: of the order.
    """

    def __init__(
        self, prepare: Callable[[Unroll], Nest], epochs: int, minibatches: int, seed: int
    ) -> None:
        self._prepare = prepare
        self._epochs = epochs
        self._minibatches = minibatches
        self._rng = np.random.default_rng(seed)

    def arrival(
        self, batch: Unroll | None, learners: int
    ) -> Iterator[tuple[Minibatch | None, int]]:
        """Yields the minibatches of all epochs."""
        if batch is None:
            yield from [(None, learners)] * (self._epochs * self._minibatches)
            return
        whole = Minibatch(batch, self._prepare(batch))
        for _ in range(self._epochs):
            order = self._rng.permutation(len(batch.parameter_version))
            for rows in np.array_split(order, self._minibatches):
                indices = tf.constant(rows, tf.int32)
                yield tree.map_structure(lambda a, i=indices: tf.gather(a, i), whole), learners


class Replayed:
    """Batches go into a replay, and steps are drawn from it, at a fixed ratio.

    Args:
      replay: what was kept of an earlier run counts.
      config: resolved.
      kept_steps: agent steps in the replay of that learner of the group which has fewest.

    Attributes:
      buffer: of this learner.
    """

    def __init__(self, replay: ReplayBuffer, config: Config, kept_steps: int) -> None:
        self.buffer = replay
        self._batch_size = config.replay.replay_batch_size
        optimizer = config.optimizer
        self._steps_per_batch = optimizer.batch_size * optimizer.unroll_length
        self._ratio = config.replay.replay_ratio
        # All learners count alike, so that they begin at the same arrival.
        self._missing = config.replay.replay_start_steps - kept_steps
        self._owed = 0.0  # gradient steps
        self._drawn = np.empty(0, np.int64)

    @property
    def missing_steps(self) -> int:
        """Agent steps that have to arrive before anything is learned."""
        return max(0, self._missing)

    def arrival(self, batch: Unroll | None, learners: int) -> Iterator[tuple[Sample | None, int]]:
        """Yields samples, once there are enough steps; None if the batch is missing."""
        if batch is not None:
            self.buffer.add(tree.map_structure(np.asarray, batch))
        self._missing -= self._steps_per_batch
        if self._missing > 0:
            return
        self._owed += self._ratio * self._steps_per_batch
        while self._owed >= 1.0:
            self._owed -= 1.0
            if batch is None:
                yield None, learners
            else:
                self._drawn, sample = self.buffer.draw(self._batch_size)
                # A compiled step takes half a millisecond longer with arrays.
                yield tree.map_structure(tf.constant, sample), learners

    def learned(self, td_errors: Nest) -> None:
        """Makes the errors the priorities of what was drawn."""
        self.buffer.set_errors(self._drawn, td_errors.numpy())


def _whole(batch: Unroll | None) -> Minibatch | None:
    return None if batch is None else Minibatch(batch, ())


def batch_uses(config: Config, prepare: Callable[[Unroll], Nest], seed: int) -> BatchUses:
    """Returns how a resolved config's algorithm uses batches; `prepare` and `seed` are for ppo."""
    uses = config.optimizer.updates_per_batch
    if config.loss.algorithm == "appo":
        return Ring(uses, config.optimizer.ring_batches)
    if config.loss.algorithm == "ppo":
        return Epochs(prepare, uses, config.optimizer.minibatches, seed)
    return Repeated(uses)
