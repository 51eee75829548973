"""How often and in which order batches are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.learner.batch_uses import BatchUses, Epochs, Ring
from impala_tf.types import Unroll

B = 6


def batch(number: int) -> Unroll:
    """Returns a batch whose unrolls are told apart by their number and row."""
    rows = tf.range(B) + 100 * number
    nothing: Any = ()
    return Unroll(tf.cast(rows, tf.int64), nothing, nothing, nothing, nothing)


def used(uses: BatchUses, number: int | None) -> list[int | None]:
    """Returns the numbers of the batches that are used when this one arrives."""
    arriving = None if number is None else batch(number)
    return [
        None if each is None else int(each.unrolls.parameter_version[0]) // 100
        for each, _ in uses.arrival(arriving, 1)
    ]


@pytest.mark.parametrize(
    ("times", "capacity", "expected"),
    [
        (2, 4, [[0], [1], [2], [3, 0], [4, 1], [5, 2], [6, 3], [7, 4]]),
        (3, 5, [[0], [1], [2, 0], [3, 1], [4, 2, 0], [5, 3, 1], [6, 4, 2], [7, 5, 3]]),
        (1, 4, [[n] for n in range(8)]),
        (2, 1, [[n, n] for n in range(8)]),
        (3, 2, [[0, 0], *([n, n, n - 1] for n in range(1, 8))]),
    ],
)
def test_a_ring_spreads_the_uses_of_each_batch(
    times: int, capacity: int, expected: list[list[int]]
) -> None:
    """Consecutive steps on one batch would overfit to it."""
    uses = Ring(times, capacity)
    assert [used(uses, number) for number in range(8)] == expected


def test_learners_with_and_without_a_batch_take_the_same_steps() -> None:
    """One that took fewer would leave the others waiting for ever in their all-reduce."""
    here, there = Ring(2, 3), Ring(2, 3)
    steps = [(used(here, n), used(there, None if n == 1 else n)) for n in range(6)]
    assert all(len(mine) == len(theirs) for mine, theirs in steps)
    assert [theirs for _, theirs in steps] == [[0], [None], [2, 0], [3, None], [4, 2], [5, 3]]


def test_a_ring_remembers_how_many_learners_had_a_batch_then() -> None:
    """The mean gradient of an old batch is that of the learners that have one of its age."""
    uses = Ring(2, 2)
    learners = [[count for _, count in uses.arrival(batch(n), n)] for n in (3, 1, 2)]
    assert learners == [[3], [1, 3], [2, 1]]


def test_every_epoch_uses_every_unroll_once_in_another_order() -> None:
    """What is prepared is that of the policy before the first step."""
    calls: list[Unroll] = []

    def prepare(unrolls: Unroll) -> tuple[tf.Tensor]:
        calls.append(unrolls)
        return (unrolls.parameter_version * 2,)

    uses = Epochs(prepare, 3, 2, seed=1)
    found = [each for each, _ in uses.arrival(batch(1), 1)]
    assert len(found) == 6 and len(calls) == 1
    rows = [each.unrolls.parameter_version.numpy() for each in found if each is not None]
    epochs = [np.concatenate(rows[k : k + 2]) for k in (0, 2, 4)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(100, 100 + B))
    assert len({tuple(epoch) for epoch in epochs}) > 1
    for each in found:
        assert each is not None
        np.testing.assert_array_equal(each.prepared[0], 2 * each.unrolls.parameter_version)
    assert list(uses.arrival(None, 1)) == [(None, 1)] * 6, "a learner without one takes all steps"
