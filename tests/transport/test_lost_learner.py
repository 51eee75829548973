"""What actors do while their learner is slow, restarts, is unreachable or has finished."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from impala_tf.config import ConfigError
from impala_tf.transport import (
    ActorClient,
    ClientClosed,
    RunOver,
    route,
    wire,
)
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    PATIENCE_S,
    FakeLearner,
    InThread,
    make_parameters,
    make_unroll,
)


@pytest.fixture
def info(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """The log, where every interruption is reported."""
    monkeypatch.setattr(route, "FIRST_REPORT_S", 0.0)
    caplog.set_level(logging.INFO, "impala_tf.actor")
    return caplog


def test_full_queues_make_actors_wait_and_other_calls_not(learner: FakeLearner) -> None:
    """Also when more pushes wait than there are workers."""
    one = learner.serve()
    learner.parameters.publish(1, make_parameters(1.0))
    learner.has_room.clear()
    actors = [learner.connect(one.port, f"actor-{k}") for k in range(20)]
    for version, actor in enumerate(actors):
        actor.push(make_unroll(version))  # returns at once: actors work one unroll ahead, not more
    second = InThread(lambda: actors[0].push(make_unroll(20)))
    assert learner.connect(one.port, "other").fetch_parameters(-1) is not None
    assert second.blocked
    learner.has_room.set()
    second.wait()
    assert sorted(learner.reported(21)) == list(range(21))
    assert 0.0 < actors[0].push_wait_fraction <= 1.0


def test_pushes_beyond_the_memory_for_them_are_told_to_retry(
    learner: FakeLearner, info: pytest.LogCaptureFixture
) -> None:
    one = learner.serve(most_waiting_bytes=1000)
    learner.has_room.clear()
    for version in range(4):
        actor = learner.connect(one.port, f"actor-{version}")
        actor.push(make_unroll(version))
    wait_until(lambda: "too many pushes" in info.text)
    learner.has_room.set()
    assert sorted(learner.reported(4)) == [0, 1, 2, 3]


def test_an_actor_survives_a_restart_of_its_learner_and_loses_no_unroll(
    learner: FakeLearner,
) -> None:
    first = learner.serve()
    actor = learner.connect(first.port)
    learner.parameters.publish(9, make_parameters(9.0))
    assert actor.fetch_parameters(-1) is not None
    for version in (0, 1):
        actor.push(make_unroll(version))
    assert learner.reported(2) == [0, 1]
    learner.has_room.clear()
    actor.push(make_unroll(2))
    learner.wait_for_put()
    first.stop(0)  # it dies during a push
    learner.close_queue()
    resumed = learner.another()
    resumed.parameters.publish(5, make_parameters(5.0))  # its last checkpoint
    resumed.serve(first.port)
    for version in (3, 4):
        actor.push(make_unroll(version))
    assert resumed.reported(3) == [2, 3, 4]
    assert learner.versions() + resumed.versions() == [0, 1, 2, 3, 4]
    got = actor.fetch_parameters(9)
    assert got is not None
    assert got[0] == 5


def test_an_actor_without_a_learner_waits_and_reports_it(
    learner: FakeLearner, info: pytest.LogCaptureFixture
) -> None:
    gone = learner.another().serve()
    gone.stop(0)
    tries = threading.Semaphore(0)
    actor = learner.connect(gone.port)
    actor.on_wait = tries.release
    handshake = InThread(actor.handshake)
    for _ in range(3):  # signs of life
        assert tries.acquire(timeout=PATIENCE_S)
    learner.serve(gone.port)
    assert handshake.wait() is None
    assert info.text.count("without the learner") == 1  # the next line is due a minute later
    assert "another run's credentials" in info.text


def test_an_actor_whose_learner_hangs_calls_again(
    learner: FakeLearner, info: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of gRPC may still answer for it."""
    monkeypatch.setattr(wire, "SILENT_S", 1.0)
    actor = learner.connect(learner.serve().port)
    learner.has_room.clear()
    actor.push(make_unroll(0))
    second = InThread(lambda: actor.push(make_unroll(1)))
    wait_until(lambda: "without the learner" in info.text)
    learner.has_room.set()
    assert second.wait() is None
    assert learner.reported(2) == [0, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda actor: actor.fetch_parameters(-1),
        lambda actor: actor.fetch_network(1),
        lambda actor: actor.infer(1, [], -1),
        lambda actor: [actor.push(make_unroll(version)) for version in (1, 2)],
    ],
)
def test_an_actor_learns_that_the_run_is_over_whatever_it_does_next(
    learner: FakeLearner, call: Callable[[ActorClient], Any]
) -> None:
    """Its unroll may take longer than the learner waits at the end: it would retry for ever."""
    one = learner.serve()
    actor = learner.connect(one.port)
    actor.handshake()
    assert not one.service.sessions.shown()[0].told_run_over
    one.finish()
    wait_until(lambda: one.service.sessions.shown()[0].told_run_over)
    one.stop(0)
    with pytest.raises(RunOver):
        call(actor)
    assert learner.versions() == []


@pytest.mark.parametrize("is_away", [False, True])
def test_close_ends_a_blocked_push(
    learner: FakeLearner,
    info: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_away: bool,
) -> None:
    """An actor that is asked to stop exits, whatever its learner does."""
    monkeypatch.setattr(route, "FIRST_PAUSE_S", 2 * PATIENCE_S)
    one = learner.serve()
    learner.has_room.clear()
    if is_away:
        one.stop(0)
    actor = learner.connect(one.port)
    actor.push(make_unroll(0))
    if is_away:
        wait_until(lambda: "without the learner" in info.text)
    else:
        learner.wait_for_put()
    second = InThread(lambda: actor.push(make_unroll(1)))
    assert InThread(actor.close).wait() is None  # long before the push's deadline
    assert isinstance(second.wait(), ClientClosed)
    with pytest.raises(ClientClosed):
        actor.fetch_parameters(-1)
    actor.close()


def test_a_port_in_use_is_named(learner: FakeLearner) -> None:
    port = learner.serve().port
    with pytest.raises(ConfigError, match=f"--learner_hosts: .*127.0.0.1:{port}"):
        learner.serve(port)
