"""The queue between wire and update: bit-exact, bounded, and never in the way of a shutdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf.agents.agent import make_agent, unroll_specs
from impala_tf.learner.unroll_queue import UnrollQueue, batches, batches_or_none
from impala_tf.transport import QueueClosed
from impala_tf.types import Unroll
from tests.samples import image_spec, random_unrolls, vector_spec
from tests.wire import PATIENCE_S, InThread, bits

LSTM_SPECS = unroll_specs(
    make_agent("ResNetLSTMAgent", image_spec((6, 7, 3))), image_spec((6, 7, 3)), unroll_length=3
)
MLP_SPECS = unroll_specs(make_agent("MLPAgent", vector_spec()), vector_spec(), unroll_length=3)
# Long enough that a call which does not wait would be back, also on a busy machine.
A_WHILE_S = 0.5


def numbered(first: int, count: int) -> Unroll:
    """Unrolls that can be told apart by their versions: first, first + 1, ..."""
    versions = np.arange(first, first + count, dtype=np.int64)
    return random_unrolls(MLP_SPECS, count)._replace(parameter_version=versions)


def versions(batch: Unroll) -> list[int]:
    return batch.parameter_version.numpy().tolist()


def upcoming(coming: Iterator[Unroll | None]) -> InThread:
    """The next batch's versions, or None when there are no more."""

    def take() -> list[int] | None:
        batch = next(coming, None)
        return None if batch is None else versions(batch)

    return InThread(take)


@pytest.mark.parametrize("specs", [LSTM_SPECS, MLP_SPECS], ids=["LSTM", "feedforward"])
def test_batches_are_what_was_put_bit_for_bit(specs: Unroll) -> None:
    """Fields of one shape could be swapped in the flat list, and training would still run."""
    queue = UnrollQueue(specs, capacity=8)
    first, second = random_unrolls(specs, 3, seed=1), random_unrolls(specs, 3, seed=2)
    first.env_outputs.reward[:2, 0] = np.nan, -np.inf
    queue.put(first)
    queue.put(second)
    coming = batches(queue, batch_size=2)
    together = tree.map_structure(lambda a, b: np.concatenate([a, b]), first, second)
    for start in (0, 2, 4):
        batch = next(coming)
        tree.assert_same_structure(batch, specs)
        expected = tree.map_structure(lambda a, k=start: a[k : k + 2], together)
        assert bits(tree.map_structure(lambda t: t.numpy(), batch)) == bits(expected)
    queue.close()


def test_first_in_first_out() -> None:
    """An unroll that is overtaken grows old: its policy lag is what V-trace has to correct."""
    queue = UnrollQueue(MLP_SPECS, capacity=3)  # less than a batch, and less than a put

    def feed() -> None:
        for k in range(0, 20, 5):
            queue.put(numbered(k, 5))

    feeding = InThread(feed)
    coming = batches(queue, batch_size=4)
    assert [versions(next(coming)) for _ in range(5)] == [
        list(range(k, k + 4)) for k in range(0, 20, 4)
    ]
    assert feeding.wait() is None
    queue.close()


def test_a_full_queue_makes_the_actor_wait() -> None:
    """Without back-pressure the learner's memory fills with unrolls too old to learn from."""
    queue = UnrollQueue(MLP_SPECS, capacity=2)
    queue.put(numbered(0, 2))
    putting = InThread(lambda: queue.put(numbered(2, 1)))
    threading.Event().wait(A_WHILE_S)
    assert putting.blocked
    assert queue.size() == 2
    coming = batches(queue, batch_size=2)
    assert versions(next(coming)) == [0, 1]
    assert putting.wait() is None
    queue.put(numbered(3, 1))
    assert versions(next(coming)) == [2, 3]
    queue.close()


def test_closing_wakes_an_actor_that_waits_for_room() -> None:
    """A server thread that hangs in a put keeps the learner from ending."""
    queue = UnrollQueue(MLP_SPECS, capacity=1)
    queue.put(numbered(0, 1))
    putting = [InThread(lambda: queue.put(numbered(1, 4))) for _ in range(3)]
    assert InThread(queue.close).wait() is None
    assert all(isinstance(put.wait(), QueueClosed) for put in putting)
    with pytest.raises(QueueClosed):
        queue.put(numbered(5, 1))


@pytest.mark.parametrize("waiting", [0, 1, 2])
def test_closing_wakes_a_learner_that_waits_for_a_batch(waiting: int) -> None:
    """Ctrl-C while the actors are away must still lead to a checkpoint, not to a hang."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    coming = batches(queue, batch_size=3)
    queue.put(numbered(0, 3))
    assert versions(next(coming)) == [0, 1, 2]
    if waiting:
        queue.put(numbered(3, waiting))
    batch = upcoming(coming)
    threading.Event().wait(A_WHILE_S)
    assert batch.blocked
    queue.close()
    assert batch.wait() is None
    assert next(coming, None) is None


def test_whole_batches_left_at_the_end_are_still_given_out() -> None:
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    queue.put(numbered(0, 5))
    coming = batches(queue, batch_size=2)
    first = versions(next(coming))
    queue.close()
    assert [first, *map(versions, coming)] == [[0, 1], [2, 3]]


def test_batches_asked_for_after_the_end_are_none() -> None:
    """A stop request may come before the training loop does."""
    queue = UnrollQueue(MLP_SPECS, capacity=8)
    queue.close()
    assert upcoming(batches(queue, batch_size=2)).wait() is None


def test_closing_twice_is_harmless() -> None:
    """A stop request closes the queue, and so does the learner's end."""
    queue = UnrollQueue(MLP_SPECS, capacity=1)
    queue.close()
    queue.close()


def test_what_goes_wrong_while_the_queue_is_open_is_not_taken_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that ends early and says that it is done would look like a success."""
    queue = UnrollQueue(MLP_SPECS, capacity=1)

    def broken(_: int) -> list[tf.Tensor]:
        return [tf.gather([0.0], tf.random.uniform([1], 5, 6, tf.int32))]  # out of range

    monkeypatch.setattr(queue._queue, "dequeue_many", broken)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(batches(queue, batch_size=1))


def test_its_size_is_what_waits() -> None:
    """It is the queue_size of metrics.csv: 0 says that actors are the bottleneck."""
    queue = UnrollQueue(MLP_SPECS, capacity=5)
    assert queue.size() == 0
    queue.put(numbered(0, 3))
    assert queue.size() == 3
    queue.close()


class HeldQueue:
    """A queue whose batches come when the test allows it."""

    def __init__(self, *batches: object) -> None:
        self._batches = list(batches)
        self._allowed = threading.Semaphore(0)

    def allow(self, count: int) -> None:
        self._allowed.release(count)

    def take(self, batch_size: int) -> Any:
        if not self._batches:
            raise QueueClosed
        assert self._allowed.acquire(timeout=2 * PATIENCE_S)
        batch = self._batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        return batch


def first_batch(coming: Iterator[Any]) -> Any:
    """What comes after however many times nothing came."""
    return next(batch for batch in coming if batch is not None)


def test_a_group_is_not_kept_waiting_by_a_learner_without_a_batch() -> None:
    """Its actors are away: the other learners would stand still in their all-reduce."""
    held = HeldQueue("a", "b", "c")
    coming = batches_or_none(cast(UnrollQueue, held), 1, patience_s=0.0)
    assert [next(coming) for _ in range(3)] == [None] * 3
    held.allow(2)
    assert [first_batch(coming) for _ in range(2)] == ["a", "b"]
    assert next(coming) is None
    held.allow(1)
    assert first_batch(coming) == "c"


def test_a_learner_waits_for_its_batch_as_long_as_its_patience() -> None:
    """Joining without a batch at every slow moment would throw half of the work away."""
    held, in_a_hurry = HeldQueue("a", "b"), threading.Event()
    coming = batches_or_none(cast(UnrollQueue, held), 1, 10 * PATIENCE_S, in_a_hurry.is_set)
    upcoming = InThread(lambda: next(coming))
    threading.Event().wait(A_WHILE_S)
    assert upcoming.blocked
    held.allow(1)
    assert upcoming.wait() == "a"
    upcoming = InThread(lambda: next(coming))
    in_a_hurry.set()  # the run is to stop
    assert upcoming.wait() is None


def test_patience_begins_anew_with_every_batch() -> None:
    """Else a learner that has waited long, once, would never wait again."""
    held = HeldQueue("a", "b")
    coming = batches_or_none(cast(UnrollQueue, held), 1, patience_s=2.0)
    assert next(coming) is None
    held.allow(1)
    assert first_batch(coming) == "a"
    upcoming = InThread(lambda: next(coming))
    threading.Event().wait(A_WHILE_S)
    assert upcoming.blocked
    held.allow(1)
    assert upcoming.wait() == "b"


def test_a_learner_whose_batches_are_over_still_takes_part() -> None:
    """The queue closes with the stop request; the others hear of that in the next update."""
    held = HeldQueue("a")
    held.allow(1)
    coming = batches_or_none(cast(UnrollQueue, held), 1, 10 * PATIENCE_S)
    assert next(coming) == "a"
    upcoming = InThread(lambda: [next(coming) for _ in range(3)])
    assert upcoming.wait() == [None] * 3


def test_a_failed_batch_fails_the_learner() -> None:
    """It must not be taken for batches that are late, for ever."""
    held = HeldQueue("a", ValueError("broken"))
    held.allow(1)
    coming = batches_or_none(cast(UnrollQueue, held), 1, 10 * PATIENCE_S)
    assert next(coming) == "a"
    held.allow(1)
    with pytest.raises(ValueError, match="broken"):
        first_batch(coming)
