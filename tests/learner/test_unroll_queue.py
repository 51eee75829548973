"""The queue between transport and update: exact, bounded, and it never blocks a shutdown."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.learner.arrivals import Batches, UnrollQueue
from impala_tf.transport import QueueClosed
from impala_tf.types import Unroll
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec, vector_spec
from tests.helpers.unrolls import random_unrolls
from tests.helpers.waiting import wait_until
from tests.helpers.wire import PATIENCE_S, InThread, bits

LSTM_SPECS = unroll_specs(
    make_agent("ResNetLSTMAgent", image_spec((6, 7, 3))), image_spec((6, 7, 3)), unroll_length=3
)
MLP_SPECS = unroll_specs(make_agent("MLPAgent", vector_spec()), vector_spec(), unroll_length=3)
# A call that does not wait has returned after this time, even on a busy machine.
A_WHILE_S = 0.5


def numbered(first: int, count: int) -> Unroll:
    """Returns unrolls with different versions: first, first + 1, ..."""
    versions = np.arange(first, first + count, dtype=np.int64)
    return random_unrolls(MLP_SPECS, count)._replace(parameter_version=versions)


def versions(batch: Unroll) -> list[int]:
    return batch.parameter_version.numpy().tolist()


def following(coming: Batches[Unroll]) -> Unroll:
    """Returns the next batch, which must come."""
    batch = coming.get(PATIENCE_S)
    assert batch is not None
    return batch


def upcoming(coming: Batches[Unroll]) -> InThread:
    """Takes the next batch in a thread; its result is the versions, or None at the end."""

    def take() -> list[int] | None:
        batch = coming.get(10 * PATIENCE_S)
        return None if batch is None else versions(batch)

    return InThread(take)


def rest(coming: Batches[Unroll]) -> list[list[int]]:
    """Returns the versions of all batches until the end."""
    found = []
    while (batch := coming.get(PATIENCE_S)) is not None:
        found.append(versions(batch))
    assert coming.closed
    return found


def test_batches_are_bit_for_bit_what_was_put() -> None:
    """If two fields of one shape were swapped, training would still run."""
    queue = UnrollQueue(LSTM_SPECS, capacity=8)
    first, second = (random_unrolls(LSTM_SPECS, 3, seed) for seed in (1, 2))
    first.env_outputs.reward[:2, 0] = np.nan, -np.inf
    queue.put(first)
    queue.put(second)
    coming = Batches(queue, batch_size=2)
    together = tree.map_structure(lambda a, b: np.concatenate([a, b]), first, second)
    for start in (0, 2, 4):
        batch = following(coming)
        tree.assert_same_structure(batch, LSTM_SPECS)
        expected = tree.map_structure(lambda a, k=start: a[k : k + 2], together)
        assert bits(tree.map_structure(lambda t: t.numpy(), batch)) == bits(expected)
    queue.close()


def test_a_full_queue_makes_actors_wait() -> None:
    """Otherwise the learner's memory would fill with unrolls that are too old to learn from."""
    queue = UnrollQueue(MLP_SPECS, capacity=2)
    queue.put(numbered(0, 2))
    putting = InThread(lambda: queue.put(numbered(2, 3)))  # more than it holds
    threading.Event().wait(A_WHILE_S)
    assert putting.blocked
    assert queue.size() == 2
    coming = Batches(queue, batch_size=2)
    assert versions(following(coming)) == [0, 1]
    assert versions(following(coming)) == [2, 3], "the oldest come first"
    assert putting.wait() is None
    queue.close()


def test_closing_wakes_an_actor_that_waits_for_room() -> None:
    """A server thread that hangs in a put would keep the learner running."""
    queue = UnrollQueue(MLP_SPECS, capacity=1)
    queue.put(numbered(0, 1))
    putting = [InThread(lambda: queue.put(numbered(1, 4))) for _ in range(3)]
    assert InThread(queue.close).wait() is None
    assert all(isinstance(put.wait(), QueueClosed) for put in putting)
    with pytest.raises(QueueClosed):
        queue.put(numbered(5, 1))


def test_closing_wakes_a_learner_that_waits_for_a_batch() -> None:
    """Without actors, Ctrl-C must still write a checkpoint and not hang."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    coming = Batches(queue, batch_size=3)
    queue.put(numbered(0, 4))
    assert versions(following(coming)) == [0, 1, 2]
    assert coming.get(0.01) is None and not coming.closed, "it meets the other learners meanwhile"
    batch = upcoming(coming)
    threading.Event().wait(A_WHILE_S)
    assert batch.blocked
    queue.close()
    assert batch.wait() is None
    assert coming.closed
    assert rest(coming) == []


def test_exactly_one_batch_is_taken_ahead_of_the_update() -> None:
    """None ahead makes the learner wait; more than one makes the batches staler."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    queue.put(numbered(0, 8))
    coming = Batches(queue, batch_size=2)
    for first, left in ((0, 4), (2, 2)):
        assert versions(following(coming)) == [first, first + 1]
        wait_until(lambda most=left: queue.size() <= most, what="batch taken ahead")  # type: ignore
        threading.Event().wait(A_WHILE_S)
        assert queue.size() == left
    queue.close()
    assert rest(coming) == [[4, 5], [6, 7]], "whole batches that are left at the end are used"


def of_version(version: int, count: int) -> Unroll:
    return numbered(0, count)._replace(parameter_version=np.full(count, version, np.int64))


def test_what_became_stale_in_the_queue_is_dropped_when_it_is_taken() -> None:
    """If it stayed, every later batch would hold unrolls of the version before, for good.

    So no batch is taken ahead that the update makes stale.
    """
    newest, dropped = 1, 0

    def drop(num_unrolls: int) -> None:
        nonlocal dropped
        dropped += num_unrolls

    queue = UnrollQueue(MLP_SPECS, capacity=8)
    coming = Batches(queue, 2, lambda: newest, drop)
    queue.put(of_version(1, 3))  # one actor, that waited too long, sent a second one
    assert versions(following(coming)) == [1, 1]
    threading.Event().wait(A_WHILE_S)
    assert queue.size() == 1
    for newest in (2, 3):
        queue.put(of_version(newest, 2))
        assert versions(following(coming)) == [newest] * 2
    assert dropped == 1
    assert queue.size() == 0
    queue.close()
    assert rest(coming) == []


def test_a_learner_that_stops_waits_no_longer_and_the_queue_stays_open() -> None:
    """On a GPU, what waited in a queue that was closed failed the learner's last checkpoint."""
    queue = UnrollQueue(MLP_SPECS, capacity=4)
    coming = Batches(queue, batch_size=4)
    waits = upcoming(coming)
    coming.close()
    assert waits.wait() is None
    assert coming.closed
    assert coming.get(A_WHILE_S) is None
    queue.put(numbered(0, 2))  # does not raise
    queue.close()
