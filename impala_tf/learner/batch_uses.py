"""How often, in which order and in which parts batches are used, one gradient step each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tree

from impala_tf.lazy import tf
from impala_tf.learner import device
from impala_tf.types import Nest, Unroll


class Minibatch(NamedTuple):
    """The input of one gradient step on unrolls."""

    unrolls: Unroll  # [b, ...]
    # For algorithms that estimate once per batch, from before the batch's first gradient step:
    # the fields of Estimates (of a policy), or targets (of Q-values), float32 [b, T] each; else ().
    prepared: Nest = ()


class BatchUses:
    """How often and in which order batches are used; here each once.

    All learners of a group take the same number of gradient steps at every arrival. A learner
    without a batch takes part with a masked one.

    Attributes:
      replay: the replay buffer; None if there is none.
      missing_steps: the number of agent steps that must still arrive before learning starts.
    """

    replay: Any = None
    missing_steps: int = 0

    def arrival(self, batch: Any, learners: int) -> Iterator[tuple[Any, int]]:
        """Yields, for each gradient step, its input and how many learners have one.

        The input is what the algorithm's step takes, or None if this learner has none.

        Args:
          batch: what actors sent, [B, ...]; None if this learner has none, which does not change
            the number of steps.
          learners: the number of learners that have a batch now.
        """
        yield batch, learners

    def learned(self, td_errors: Nest) -> None:
        """Takes the TD errors of the last input, if its step was taken. By default, nothing."""
        return


class Ring(BatchUses):
    """A ring buffer of batches: the uses of a batch are spread evenly over later arrivals.

    With 2 uses and a ring of 4, a batch is used when it arrives and when the third batch after it
    arrives. Until the ring is full, also after a resume, there are fewer steps per arrival. In a
    ring of 1, all uses follow each other.

    Args:
      uses: how often each batch is used.
      capacity: how many batches the ring holds.
    """

    def __init__(self, uses: int, capacity: int) -> None:
        self._ages = [use * (capacity - 1) // max(uses - 1, 1) for use in range(uses)]
        # Newest first, each with the number of learners that had a batch of that age.
        self._batches: list[tuple[Unroll | None, int]] = []

    def arrival(
        self, batch: Unroll | None, learners: int
    ) -> Iterator[tuple[Minibatch | None, int]]:
        """Yields the new batch, then older ones."""
        if batch is not None:
            batch = put(batch)
        self._batches = [(batch, learners), *self._batches[: self._ages[-1]]]
        for age in self._ages[: 1 + sum(age < len(self._batches) for age in self._ages[1:])]:
            used, learners = self._batches[age]
            yield (None if used is None else Minibatch(used)), learners


class Epochs(BatchUses):
    """Every batch is prepared, then used in several epochs of shuffled minibatches.

    Args:
      prepare: returns what the gradient steps need from the whole batch, arrays [B, T].
      epochs: how often each batch is used.
      minibatches: the number of minibatches, of whole unrolls, per epoch.
      seed: the seed for shuffling.
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
        batch = put(batch)  # once: every minibatch takes its rows from all of it
        whole = Minibatch(batch, self._prepare(batch))
        for _ in range(self._epochs):
            order = self._rng.permutation(len(batch.parameter_version))
            for rows in np.array_split(order, self._minibatches):
                indices = tf.constant(rows, tf.int32)
                yield tree.map_structure(lambda a, i=indices: tf.gather(a, i), whole), learners


def put(batch: Unroll) -> Unroll:
    """Returns a batch unchanged; on a GPU, copied to its memory once for all later uses."""
    return tf.nest.map_structure(tf.identity, batch) if device.on_gpu() else batch
