"""How often, and in which order, batches are learned from.

All learners of a group take the same number of gradient steps at every arrival, in which each has
a batch or none; where one has none, the other learners' gradients count alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
import tree

from impala_tf.config import Config, resolved
from impala_tf.types import Nest, Unroll


class Minibatch(NamedTuple):
    """What one gradient step learns from."""

    unrolls: Unroll  # [b, ...]
    prepared: Nest  # float32 [b, T] each: what ppo computed before its first step; else ()


class BatchUses(Protocol):
    """Decides which gradient steps follow the arrival of a batch.

    Attributes:
      steps_on_new: how many of these steps, the first ones, use the new batch for the first time.
    """

    steps_on_new: int

    def arrival(self, batch: Unroll | None) -> Iterator[Minibatch | None]:
        """Yields what each gradient step learns from. The first is (a part of) the new batch.

        Args:
          batch: [B, ...]; None if this learner has none, which makes no step fewer.
        """


class Repeated:
    """Every batch is used several times in a row."""

    steps_on_new = 1

    def __init__(self, uses: int) -> None:
        self._uses = uses

    def arrival(self, batch: Unroll | None) -> Iterator[Minibatch | None]:
        """Yields the batch again and again."""
        for _ in range(self._uses):
            yield None if batch is None else Minibatch(batch, ())


class Ring:
    """The uses of a batch are spread evenly over the arrivals of later ones.

    With 2 uses and a ring of 4, a batch is used when it arrives and when the third one after it
    arrives. A new ring (of a resumed run, too) takes fewer steps until it is full.
    """

    steps_on_new = 1

    def __init__(self, uses: int, capacity: int) -> None:
        self._ages = [use * (capacity - 1) // max(uses - 1, 1) for use in range(uses)]
        self._batches: list[Unroll | None] = []  # newest first

    def arrival(self, batch: Unroll | None) -> Iterator[Minibatch | None]:
        """Yields the new batch, then older ones."""
        self._batches = [batch, *self._batches[: self._ages[-1]]]
        for age in self._ages[: 1 + sum(age < len(self._batches) for age in self._ages[1:])]:
            used = self._batches[age]
            yield None if used is None else Minibatch(used, ())


class Epochs:
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
        self._minibatches = self.steps_on_new = minibatches
        self._rng = np.random.default_rng(seed)

    def arrival(self, batch: Unroll | None) -> Iterator[Minibatch | None]:
        """Yields the minibatches of all epochs."""
        if batch is None:
            yield from [None] * (self._epochs * self._minibatches)
            return
        whole = Minibatch(batch, self._prepare(batch))
        for _ in range(self._epochs):
            order = self._rng.permutation(len(batch.parameter_version))
            for rows in np.array_split(order, self._minibatches):
                indices = tf.constant(rows, tf.int32)
                yield tree.map_structure(lambda a, i=indices: tf.gather(a, i), whole)


def batch_uses(config: Config, prepare: Callable[[Unroll], Nest], seed: int) -> BatchUses:
    """Returns how a resolved config's algorithm uses batches; `prepare` and `seed` are for ppo."""
    uses = resolved(config.optimizer.updates_per_batch)
    if config.loss.algorithm == "appo":
        return Ring(uses, resolved(config.optimizer.ring_batches))
    if config.loss.algorithm == "ppo":
        return Epochs(prepare, uses, resolved(config.optimizer.minibatches), seed)
    return Repeated(uses)
