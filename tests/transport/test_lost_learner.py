"""What actors do while their learner is slow, restarts, is unreachable or has finished."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import ConfigError
from impala_tf.transport import (
    ActorClient,
    ClientClosed,
    LearnerServer,
    LearnerService,
    Pushes,
    RunOver,
    route,
    wire,
)
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    PATIENCE_S,
    RUN,
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


def test_an_actor_whose_learner_stays_away_gives_up(learner: FakeLearner) -> None:
    gone = learner.serve()
    gone.stop(0)
    with pytest.raises(ClientClosed):
        learner.connect(gone.port, give_up_s=1.0).handshake()


def test_an_actor_whose_learner_hangs_calls_again(
    learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of gRPC may still answer for it."""
    monkeypatch.setattr(wire, "SILENT_S", 1.0)
    actor = learner.connect(learner.serve().port)
    learner.has_room.clear()
    actor.push(make_unroll(0))
    second = InThread(lambda: actor.push(make_unroll(1)))
    time.sleep(5.0)
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
def test_every_call_learns_that_the_run_is_over(
    learner: FakeLearner, call: Callable[[ActorClient], Any]
) -> None:
    one = learner.serve()
    actor = learner.connect(one.port)
    actor.handshake()
    one.finish()
    with pytest.raises(RunOver):
        call(actor)
    wait_until(lambda: one.service.actors()[0].told_run_over)
    assert learner.versions() == []


def test_an_actor_that_is_busy_learns_that_the_run_is_over(learner: FakeLearner) -> None:
    """Its unroll takes longer than the learner waits at the end: it would retry for ever."""
    one = learner.serve()
    actor = learner.connect(one.port)
    actor.handshake()
    assert not one.service.actors()[0].told_run_over
    one.finish()
    wait_until(lambda: one.service.actors()[0].told_run_over)
    one.stop(0.0)
    with pytest.raises(RunOver):
        actor.push(make_unroll(0))


def test_a_waiting_push_learns_that_the_run_is_over(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture
) -> None:
    one = learner.serve()
    actor = learner.connect(one.port)
    learner.has_room.clear()
    actor.push(make_unroll(0))
    learner.wait_for_put()
    second = InThread(lambda: actor.push(make_unroll(1)))
    one.finish()
    learner.close_queue()
    assert isinstance(second.wait(), RunOver)
    wait_until(lambda: one.service.actors()[0].told_run_over)
    assert learner.reports.empty()
    one.stop(0)
    assert "never retrieved" not in caplog.text


def test_a_push_to_a_stopped_learner_waits_until_it_is_back(learner: FakeLearner) -> None:
    """A learner that is stopped before the end of the run resumes later."""
    one = learner.serve()
    actor = learner.connect(one.port)
    learner.has_room.clear()
    actor.push(make_unroll(0))
    learner.wait_for_put()
    learner.close_queue()
    learner.wait_for_put()  # a retry
    assert not one.service.actors()[0].told_run_over
    learner.failure = None
    actor.push(make_unroll(1))
    assert learner.reported(2) == [0, 1]


def test_close_ends_a_blocked_push(learner: FakeLearner) -> None:
    """An actor that is asked to stop exits, whatever its learner does."""
    actor = learner.connect(learner.serve().port)
    learner.has_room.clear()
    actor.push(make_unroll(0))
    learner.wait_for_put()
    second = InThread(lambda: actor.push(make_unroll(1)))
    assert InThread(actor.close).wait() is None  # long before the push's deadline
    assert isinstance(second.wait(), ClientClosed)
    with pytest.raises(ClientClosed):
        actor.push(make_unroll(2))
    with pytest.raises(ClientClosed):
        actor.fetch_parameters(-1)
    actor.close()


def test_close_ends_the_wait_for_a_learner(
    learner: FakeLearner, info: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = learner.serve()
    gone.stop(0)
    monkeypatch.setattr(route, "FIRST_PAUSE_S", 2 * PATIENCE_S)
    actor = learner.connect(gone.port)
    handshake = InThread(actor.handshake)
    wait_until(lambda: "without the learner" in info.text)
    assert InThread(actor.close).wait() is None
    assert isinstance(handshake.wait(), ClientClosed)


def test_a_port_in_use_is_named(learner: FakeLearner) -> None:
    port = learner.serve().port
    with pytest.raises(ConfigError, match=f"--learner_hosts: .*127.0.0.1:{port}"):
        learner.serve(port)


def test_a_learner_behind_nat_listens_on_its_own_addresses(
    directory: Path, learner: FakeLearner
) -> None:
    """Its actors know it by the address of a router."""
    server = LearnerServer(
        "192.0.2.1:0", directory, LearnerService(Pushes(RUN, learner.put), learner.parameters)
    )
    server.start()
    try:
        learner.connect(server.port).handshake()
    finally:
        server.stop(0)
