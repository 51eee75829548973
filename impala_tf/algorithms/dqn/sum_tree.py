"""A binary tree of sums, for drawing indices in proportion to their weights."""

from __future__ import annotations

import numpy as np


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
