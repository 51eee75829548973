"""The queue between transport and update: exact, bounded, and it never blocks a shutdown."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf.agents.agent import unroll_specs
from impala_tf.learner.unroll_queue import Batches, UnrollQueue
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


@pytest.mark.parametrize("specs", [LSTM_SPECS, MLP_SPECS], ids=["LSTM", "feedforward"])
def test_batches_are_bit_for_bit_what_was_put(specs: Unroll) -> None:
    """If two fields of one shape were swapped, training would still run."""
    queue = UnrollQueue(specs, capacity=8)
    first, second = random_unrolls(specs, 3, seed=1), random_unrolls(specs, 3, seed=2)
    first.env_outputs.reward[:2, 0] = np.nan, -np.inf
    queue.put(first)
    queue.put(second)
    coming = Batches(queue, batch_size=2)
    together = tree.map_structure(lambda a, b: np.concatenate([a, b]), first, second)
    for start in (0, 2, 4):
        batch = following(coming)
        tree.assert_same_structure(batch, specs)
        expected = tree.map_structure(lambda a, k=start: a[k : k + 2], together)
        assert bits(tree.map_structure(lambda t: t.numpy(), batch)) == bits(expected)
    queue.close()


def test_the_oldest_unrolls_come_first() -> None:
    """Unrolls that wait for longer have a larger policy lag."""
    queue = UnrollQueue(MLP_SPECS, capacity=3)  # less than a batch, and less than a put

    def feed() -> None:
        for k in range(0, 20, 5):
            queue.put(numbered(k, 5))

    feeding = InThread(feed)
    coming = Batches(queue, batch_size=4)
    assert [versions(following(coming)) for _ in range(5)] == [
        list(range(k, k + 4)) for k in range(0, 20, 4)
    ]
    assert feeding.wait() is None
    queue.close()


def test_a_full_queue_makes_actors_wait() -> None:
    """Otherwise the learner's memory would fill with unrolls that are too old to learn from."""
    queue = UnrollQueue(MLP_SPECS, capacity=2)
    queue.put(numbered(0, 2))
    putting = InThread(lambda: queue.put(numbered(2, 1)))
    threading.Event().wait(A_WHILE_S)
    assert putting.blocked
    assert queue.size() == 2
    coming = Batches(queue, batch_size=2)
    assert versions(following(coming)) == [0, 1]
    assert putting.wait() is None
    queue.put(numbered(3, 1))
    assert versions(following(coming)) == [2, 3]
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


@pytest.mark.parametrize("waiting", [0, 1, 2])
def test_closing_wakes_a_learner_that_waits_for_a_batch(waiting: int) -> None:
    """Without actors, Ctrl-C must still write a checkpoint and not hang."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    coming = Batches(queue, batch_size=3)
    queue.put(numbered(0, 3))
    assert versions(following(coming)) == [0, 1, 2]
    if waiting:
        queue.put(numbered(3, waiting))
    batch = upcoming(coming)
    threading.Event().wait(A_WHILE_S)
    assert batch.blocked
    queue.close()
    assert batch.wait() is None
    assert coming.closed
    assert rest(coming) == []


def test_whole_batches_that_are_left_at_the_end_are_used() -> None:
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    queue.put(numbered(0, 5))
    coming = Batches(queue, batch_size=2)
    first = versions(following(coming))
    queue.close()
    assert [first, *rest(coming)] == [[0, 1], [2, 3]]


def test_there_are_no_batches_after_the_end() -> None:
    """A stop request may come before the training loop starts."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    queue.close()
    assert upcoming(Batches(queue, batch_size=2)).wait() is None


def test_closing_twice_is_harmless() -> None:
    """A stop request closes the queue, and the end of the learner closes it again."""
    queue = UnrollQueue(MLP_SPECS, capacity=1)
    queue.close()
    queue.close()


def test_an_error_is_not_mistaken_for_the_end_of_the_run() -> None:
    """The run would end early and say that it is done."""
    queue = UnrollQueue(MLP_SPECS, capacity=1)
    with pytest.raises(tf.errors.InvalidArgumentError):
        Batches(queue, batch_size=-1).get(PATIENCE_S)
    queue.close()


def has_at_most(queue: UnrollQueue, count: int) -> bool:
    return queue.size() <= count


def test_exactly_one_batch_is_taken_ahead_of_the_update() -> None:
    """None ahead makes the learner wait; more than one makes the batches staler."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    queue.put(numbered(0, 8))
    coming = Batches(queue, batch_size=2)
    for first, left in ((0, 4), (2, 2)):
        assert versions(following(coming)) == [first, first + 1]
        wait_until(functools.partial(has_at_most, queue, left), what="batch taken ahead")
        threading.Event().wait(A_WHILE_S)
        assert queue.size() == left
    queue.close()


def test_the_size_is_the_number_of_waiting_unrolls() -> None:
    """It is queue_size in metrics.csv, where 0 says that actors are the bottleneck."""
    queue = UnrollQueue(MLP_SPECS, capacity=5)
    assert queue.size() == 0
    queue.put(numbered(0, 3))
    assert queue.size() == 3
    queue.close()


def test_who_does_not_wait_for_long_gets_the_batch_later() -> None:
    """A learner without a batch meets the others again and again."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    coming = Batches(queue, batch_size=2)
    queue.put(numbered(0, 1))
    assert [coming.get(0.0), coming.get(0.01)] == [None, None]
    assert not coming.closed
    queue.put(numbered(1, 1))
    assert versions(following(coming)) == [0, 1]
    queue.close()


class Newest:
    """The learner's parameter_version, and what a queue that knows it has dropped."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.dropped = 0

    def queue(self, capacity: int = 8) -> UnrollQueue:
        return UnrollQueue(MLP_SPECS, capacity, lambda: self.version, self._drop)

    def _drop(self, num_unrolls: int) -> None:
        self.dropped += num_unrolls


def of_version(version: int, count: int) -> Unroll:
    return numbered(0, count)._replace(parameter_version=np.full(count, version, np.int64))


def test_what_became_stale_in_the_queue_is_dropped_when_it_is_taken() -> None:
    """If it stayed, every later batch would hold unrolls of the version before, for good."""
    newest = Newest(1)
    queue = newest.queue()
    coming = Batches(queue, batch_size=2)
    queue.put(of_version(1, 3))  # one actor, that waited too long, sent a second one
    assert versions(following(coming)) == [1, 1]
    for version in (2, 3):
        newest.version = version
        queue.put(of_version(version, 2))
        assert versions(following(coming)) == [version] * 2
    assert newest.dropped == 1
    assert queue.size() == 0
    queue.close()
    assert rest(coming) == []


def test_no_batch_is_taken_ahead_that_the_update_makes_stale() -> None:
    newest = Newest(1)
    queue = newest.queue()
    coming = Batches(queue, batch_size=2)
    queue.put(of_version(1, 4))
    assert versions(following(coming)) == [1, 1]
    threading.Event().wait(A_WHILE_S)
    assert queue.size() == 2
    newest.version = 2  # the update
    batch = upcoming(coming)
    wait_until(lambda: newest.dropped == 2, what="the stale unrolls are dropped")
    queue.put(of_version(2, 2))
    assert batch.wait() == [2, 2]
    queue.close()


def test_a_part_of_a_batch_that_became_stale_while_it_waited_is_dropped() -> None:
    """Other learners of the group go on without one whose batch is not complete."""
    newest = Newest(1)
    queue = newest.queue()
    coming = Batches(queue, batch_size=3)
    queue.put(of_version(1, 2))
    assert coming.get(0.0) is None
    newest.version = 2  # an update without this learner's batch
    queue.put(of_version(2, 3))
    batch = following(coming)
    assert versions(batch) == [2] * 3
    assert newest.dropped == 2
    queue.close()


def test_a_whole_batch_that_became_stale_before_it_was_used_is_dropped() -> None:
    newest = Newest(1)
    queue = newest.queue()
    coming = Batches(queue, batch_size=2)
    assert coming.get(0.0) is None  # from now on, a batch is taken as soon as it is there
    queue.put(of_version(1, 2))
    wait_until(lambda: queue.size() == 0, what="batch taken")
    threading.Event().wait(A_WHILE_S)
    newest.version = 2
    queue.put(of_version(2, 2))
    assert versions(following(coming)) == [2, 2]
    assert newest.dropped == 2
    queue.close()


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
