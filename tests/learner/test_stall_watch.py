"""A learner that has waited for a minute logs what it waits for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from impala_tf.learner import peer_watch
from impala_tf.learner.stall_watch import StallWatch
from tests.helpers.ports import free_port


class Watched:
    """One of three learners, with the ports of the others closed, and a clock."""

    def __init__(self, size: int = 3, rank: int = 0) -> None:
        self.now = 100.0
        self.absent: tuple[int, ...] = ()
        hosts = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        self.updates = 0
        self.stall_watch = StallWatch(
            hosts, rank, lambda: self.absent, lambda: self.now, lambda: self.updates
        )
        self.batches = self.stall_watch.watch(iter("abc"))

    def warn_after(self, seconds: float) -> None:
        self.now += seconds
        self.stall_watch.warn(["actor-0", "actor-3"])


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_without_unrolls_the_actors_are_named_after_half_a_minute_and_every_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()
    for seconds in (29.0, 2.0, 58.0, 3.0):
        watched.warn_after(seconds)
    watched.now += 60.0
    watched.stall_watch.warn([])
    assert messages(caplog) == [
        "no batch for 31 s; waiting for unrolls from actor-0, actor-3",
        "no batch for 92 s; waiting for unrolls from actor-0, actor-3",
        "no batch for 152 s; waiting for unrolls from actors, but none has connected",
    ]


def test_an_update_without_a_batch_does_not_end_the_wait_for_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched()

    def starved() -> Iterator[None]:
        for _ in range(2):
            watched.warn_after(61.0)
            yield None

    assert list(watched.stall_watch.watch(starved())) == [None, None]
    assert [line.partition(";")[0] for line in messages(caplog)] == [
        "no batch for 61 s",
        "no batch for 122 s",
    ]


def test_in_an_update_the_other_learners_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    next(watched.batches)
    monkeypatch.setattr(peer_watch, "unreachable", lambda hosts, rank: [])
    watched.warn_after(61.0)
    monkeypatch.setattr(peer_watch, "unreachable", lambda hosts, rank: [2])
    watched.warn_after(61.0)
    assert messages(caplog) == [
        "learner-0: has waited 61 s for one of learner-1, learner-2",
        "learner-0: has waited 122 s for learner-2, which does not answer",
    ]


def test_after_a_slow_update_the_learners_without_a_batch_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched(rank=1)
    next(watched.batches)
    watched.now += 60.2
    watched.absent = (1, 2)  # it does not name itself
    next(watched.batches)
    watched.now += 1.0
    next(watched.batches)  # a quick update
    assert messages(caplog) == ["learner-1: has waited 60 s for learner-2: no batch"]


def test_a_single_learner_waits_for_no_other(caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched(size=1)
    next(watched.batches)
    watched.warn_after(1000.0)
    assert messages(caplog) == []


def test_a_learner_that_waits_for_a_hung_one_ends_after_a_hundred_seconds() -> None:
    watched = Watched()
    next(watched.batches)
    watched.now += 399.0
    assert watched.stall_watch.hung() == "", "the first update includes compilation"
    watched.now += 2.0
    assert watched.stall_watch.hung() != ""
    next(watched.batches)
    watched.now += 99.0
    assert watched.stall_watch.hung() == ""
    watched.now += 2.0
    said = watched.stall_watch.hung()
    assert said.startswith("learner-0: has waited 101 s for learner-1, learner-2, which does not")


def test_a_learner_that_hangs_itself_says_so() -> None:
    watched = Watched(rank=1)
    for _ in range(2):
        next(watched.batches)
    watched.updates += 1
    watched.now += 101.0
    assert watched.stall_watch.hung() == "learner-1: has hung for 101 s after an update"


def test_a_learner_without_others_never_counts_as_hung() -> None:
    watched = Watched(size=1)
    next(watched.batches)
    watched.now += 1e6
    assert watched.stall_watch.hung() == ""
