"""Indices are drawn in proportion to their weights, whatever was changed before."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_tf.algorithms.dqn.buffer import SumTree


@settings(max_examples=200, deadline=None)
@given(
    capacity=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    changes=st.integers(1, 5),
)
def test_it_finds_what_a_running_sum_finds(capacity: int, seed: int, changes: int) -> None:
    rng = np.random.default_rng(seed)
    tree, weights = SumTree(capacity), np.zeros(capacity)
    for _ in range(changes):
        indices = rng.integers(0, capacity, rng.integers(1, 2 * capacity + 1))
        new = rng.integers(0, 4, len(indices)).astype(float)
        tree.set(indices, new)
        weights[indices] = new  # of an index that is there twice, the last one counts
    assert tree.total == weights.sum()
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), weights)
    if tree.total:
        sums = np.arange(0, tree.total, 0.5)
        expected = np.searchsorted(np.cumsum(weights), sums, side="right")
        np.testing.assert_array_equal(tree.find(sums), expected)


def test_rounding_never_leads_to_an_index_without_weight() -> None:
    """Its step may be none: the transition into a reset."""
    tree = SumTree(6)
    tree.set(np.arange(3), np.array([0.1, 0.2, 0.3]))
    assert tree.find(np.array([np.nextafter(tree.total, 1), tree.total])).tolist() == [2, 2]
