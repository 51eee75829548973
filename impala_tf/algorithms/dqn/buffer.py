"""The replay buffer: a learner's newest unrolls, and the agent steps that are drawn from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tree

from impala_tf.agents.n_step_returns import NStepReturns, n_step_returns
from impala_tf.config import Config
from impala_tf.environments.observations import ObservationLayout
from impala_tf.types import EnvOutput, Unroll

# Alpha of the priorities and beta of the importance weights (arXiv 1511.05952, 1803.00933).
_EXPONENTS = (0.6, 0.4)
_TINY = 1e-6  # added to errors, so that a step without an error can still be drawn


class Sample(NamedTuple):
    """B agent steps, drawn with replacement. Observations are as environments return them."""

    step: EnvOutput  # [B, ...]
    action: np.ndarray  # int32 [B]: chosen at `step`
    returns: np.ndarray  # float32 [B]: see n_step_returns.NStepReturns
    discounts: np.ndarray  # float32 [B]
    next_step: EnvOutput  # [B, ...]: the step at the end of the n-step window
    weights: np.ndarray  # float32 [B]: importance weights, at most 1
    parameter_version: np.ndarray  # int64 [B]: of the parameters that chose the action


class ReplayBuffer:
    """A ring of unrolls of T steps. A frame is stored once, or twice if two unrolls share it.

    A step is drawn with probability p / sum of p, with p = (|error| + tiny)^alpha (Schaul et al.,
    2016, arXiv 1511.05952, equation 1). The error is the TD error of its n-step target: at first
    its actor's (arXiv 1803.00933), later this learner's. Uniform sampling is alpha = 0.

    Args:
      specs: an Unroll of tf.TensorSpec without the leading dimension, with td_errors.
      layout: the layout of the level's observations.
      config: the run's config.
      seed: the seed for drawing steps.
    """

    def __init__(
        self,
        specs: Unroll,
        layout: ObservationLayout,
        config: Config,
        seed: int | np.random.SeedSequence,
    ) -> None:
        self._layout = layout
        self._loss = config.loss
        self._n_step = config.loss.n_step
        is_prioritized = config.replay.replay_sampling == "prioritized"
        self._alpha, self._beta = _EXPONENTS if is_prioritized else (0.0, 0.0)
        self._rng = np.random.default_rng(seed)
        self._length = config.optimizer.unroll_length
        self._slots = max(1, config.replay.replay_capacity // self._length)
        self._unrolls = _make(specs, self._slots)
        self._targets = NStepReturns(
            *(
                np.zeros((self._slots, self._length), dtype)
                for dtype in (np.float32, np.float32, np.int32, np.bool_)
            )
        )
        self._is_filled = np.zeros(self._slots, np.bool_)
        self._tree = SumTree(self._slots * self._length)
        self._next = self._valid_steps = 0

    @property
    def steps(self) -> int:
        """The number of agent steps in the buffer."""
        return int(np.count_nonzero(self._is_filled)) * self._length

    @property
    def capacity(self) -> int:
        """The largest number of agent steps that the buffer holds."""
        return self._slots * self._length

    def add(self, unrolls: Unroll) -> None:
        """Stores unrolls, arrays [B, ...], in place of the oldest ones."""
        count = len(unrolls.parameter_version)
        slots = (self._next + np.arange(count)) % self._slots
        self._next = (self._next + count) % self._slots
        self._valid_steps -= int(self._targets.valid[slots[self._is_filled[slots]]].sum())
        tree.map_structure(_assign(slots), self._unrolls, unrolls)
        targets = n_step_returns(
            unrolls.env_outputs,
            self._n_step,
            self._loss.discounting,
            self._loss.reward_clipping,
        )
        tree.map_structure(_assign(slots), self._targets, targets)
        self._is_filled[slots] = True
        self._valid_steps += int(targets.valid.sum())
        self._set_priorities_of(slots)

    def draw(self, batch_size: int) -> tuple[np.ndarray, Sample]:
        """Draws steps: one from each of B equal strata of the total priority.

        Args:
          batch_size: B.

        Returns:
          (the steps' indices, int64 [B], for `set_errors`; the steps).
        """
        total = self._tree.total
        quantiles = (np.arange(batch_size) + self._rng.random(batch_size)) / batch_size
        indices = self._tree.find(quantiles * total)
        rows, steps = np.divmod(indices, self._length)
        env_outputs, targets = self._unrolls.env_outputs, self._targets
        return indices, Sample(
            step=self._layout.take(env_outputs, rows, steps),
            action=self._unrolls.agent_outputs.action[rows, steps],
            returns=targets.returns[rows, steps],
            discounts=targets.discounts[rows, steps],
            next_step=self._layout.take(env_outputs, rows, targets.bootstrap[rows, steps]),
            weights=self._weights(indices, total),
            parameter_version=self._unrolls.parameter_version[rows],
        )

    def set_errors(self, indices: np.ndarray, td_errors: np.ndarray) -> None:
        """Updates the priorities of steps that were drawn since the last `add`.

        Args:
          indices: int64 [B], from `draw`.
          td_errors: float32 [B].
        """
        if self._alpha == 0.0:
            return
        errors = np.abs(td_errors)
        rows, steps = np.divmod(indices, self._length)
        self._unrolls.td_errors[rows, steps] = errors
        self._tree.set(indices, (errors + _TINY) ** self._alpha)

    def _weights(self, indices: np.ndarray, total: float) -> np.ndarray:
        """Returns (M P(i))^-beta over its maximum, where M is the number of valid steps.

        Importance weights of arXiv 1511.05952, section 3.4.
        """
        probabilities = self._tree.get(indices) / total
        weights = (self._valid_steps * probabilities) ** -self._beta
        return (weights / weights.max()).astype(np.float32)

    def _set_priorities_of(self, slots: np.ndarray) -> None:
        """Enters all steps of unrolls into the tree; resets, which are no transitions, as 0."""
        errors = np.abs(self._unrolls.td_errors[slots])
        weights = self._targets.valid[slots] * (errors + _TINY) ** self._alpha
        self._tree.set(slots[:, None] * self._length + np.arange(self._length), weights)


def _make(specs: Unroll, slots: int) -> Unroll:
    # The system allocates their memory when they are written to.
    return tree.map_structure(
        lambda spec: np.zeros((slots, *spec.shape), spec.dtype.as_numpy_dtype), specs
    )


def _assign(slots: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
    def assign(array: np.ndarray, new: np.ndarray) -> None:
        array[slots] = new

    return assign


class SumTree:
    """Weights of `capacity` indices, 0 at first (Schaul et al., 2016, arXiv 1511.05952, B.2.1).

    All operations work on many indices at once: a draw is one pass over the levels of the tree.

    Args:
      capacity: the number of indices.
    """

    def __init__(self, capacity: int) -> None:
        self._first_leaf = 1 << max(0, capacity - 1).bit_length()
        # Node i has the children 2 i and 2 i + 1; node 1 is the root, node 0 is not used.
        self._sums = np.zeros(2 * self._first_leaf)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    def get(self, indices: np.ndarray) -> np.ndarray:
        """Returns the weights of indices, float64, of the same shape."""
        weights: np.ndarray = self._sums[self._first_leaf + indices]
        return weights

    def set(self, indices: np.ndarray, weights: np.ndarray) -> None:
        """Sets weights, which must not be negative. The last one of a repeated index counts."""
        nodes = self._first_leaf + np.asarray(indices).ravel()
        self._sums[nodes] = np.asarray(weights).ravel()
        while nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, sums: np.ndarray) -> np.ndarray:
        """Returns for each number the first index at which the cumulative weight exceeds it.

        Args:
          sums: float64 [M], at least 0 and less than `total`, which must not be 0.

        Returns:
          int64 [M].
        """
        remainders = np.array(sums, np.float64)
        nodes = np.ones(len(remainders), np.int64)
        while nodes[0] < self._first_leaf:
            left, right = 2 * nodes, 2 * nodes + 1
            in_left = self._sums[left]
            # Rounding may leave a remainder beyond the last weight: never enter an empty subtree.
            goes_right = (remainders >= in_left) & (self._sums[right] > 0.0)
            remainders = np.where(goes_right, remainders - in_left, remainders)
            nodes = np.where(goes_right, right, left)
        return nodes - self._first_leaf
