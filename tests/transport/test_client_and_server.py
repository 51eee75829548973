"""Actors and a learner over real gRPC: what arrives, and how often it counts."""

from __future__ import annotations

import threading
import time

import grpc
import pytest
import tree

from impala_tf.machine.process_memory import peak_mib
from impala_tf.types import ActorReport, EnvOutput, Episode, Unroll
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    PATIENCE_S,
    FakeLearner,
    InThread,
    bits,
    hello,
    make_parameters,
    make_unroll,
    push,
)

# --- what arrives ---


def test_an_actor_reaches_its_learner_without_the_proxy_for_web_pages(
    learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines of universities and clusters often have one."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    learner.connect(learner.serve().port).push(make_unroll(1))
    assert learner.reported(1) == [1]


def test_an_unroll_and_its_report_arrive_bit_for_bit(learner: FakeLearner) -> None:
    one = learner.serve()
    actor = learner.connect(one.port)
    sent = make_unroll(version=12, n=4)
    expected = bits(sent)
    actor.push(sent, [Episode(-21.0, 900), Episode(3.5, 40)], ActorReport(1234.5, 0.5, 0.25, 3))
    for array in tree.flatten(sent):
        array[...] = 0  # the actor reuses its arrays
    *pushed, report = learner.reports.get(timeout=PATIENCE_S)
    assert pushed == [12, "actor-0", [Episode(-21.0, 900), Episode(3.5, 40)]]
    assert report == ActorReport(1234.5, 0.5, 0.25, 3, *report[4:])
    assert 0.0 <= report.push_wait_fraction <= 1.0
    assert 50.0 < report.memory_mb <= (peak_mib() or 0.0)  # of this process
    got = learner.unrolls.get()
    assert isinstance(got, Unroll)
    assert isinstance(got.env_outputs, EnvOutput)
    assert bits(got) == expected


def test_what_keeps_an_actor_from_acting_is_known_until_its_next_push(learner: FakeLearner) -> None:
    one = learner.serve()
    actor = learner.connect(one.port)
    actor.report("nobody listens before the handshake, and that is no failure")
    actor.handshake()
    actor.report("its environments broke\x1b[2J" + "!" * 10_000)
    wait_until(lambda: one.service.sessions.shown()[0].trouble)
    (seen,) = one.service.sessions.shown()
    assert seen.trouble.startswith("its environments broke?[2J!!!") and len(seen.trouble) < 1000
    actor.push(make_unroll(0))
    assert learner.reported(1) == [0]
    wait_until(lambda: one.service.sessions.shown()[0].trouble == "")


def test_an_actor_waits_for_the_first_parameters_and_gets_each_version_once(
    learner: FakeLearner,
) -> None:
    actor = learner.connect(learner.serve().port)
    actor.handshake()
    waiting = InThread(lambda: actor.fetch_parameters(-1))
    threading.Event().wait(0.5)
    assert waiting.blocked  # the learner has none yet; no actor may act with random ones
    learner.parameters.publish(0, make_parameters(0.5))
    got = waiting.wait()
    assert got is not None
    assert got[0] == 0
    assert bits(got[1]) == bits(make_parameters(0.5))
    assert actor.fetch_parameters(0) is None
    learner.parameters.publish(7, make_parameters(7.0))
    got = actor.fetch_parameters(0)
    assert got is not None
    assert (got[0], got[1][0].max()) == (7, 7.0)
    learner.parameters.publish(2, make_parameters(2.0))  # restarted from a checkpoint
    got = actor.fetch_parameters(7)
    assert got is not None and got[0] == 2


# --- how often it counts ---


def test_a_repeated_push_counts_once(learner: FakeLearner) -> None:
    """The answer to a push may be lost, and the actor then sends it again."""
    one = learner.serve()
    peer = learner.peer(one)
    peer.ask(hello=hello())
    numbers = (0, 0, 1, 0, 1, 2)
    duplicates = [peer.ask(push=push(number)).duplicate for number in numbers]
    assert duplicates == [False, True, False, True, True, False]
    assert learner.versions() == [0, 1, 2]
    assert learner.reports.qsize() == 3
    again = learner.peer(one)
    again.ask(hello=hello())  # another stream changes nothing
    assert again.ask(push=push(2)).duplicate


def test_a_retry_waits_for_the_first_attempt_and_counts_once(learner: FakeLearner) -> None:
    """The stream may break while the queue is full."""
    one = learner.serve()
    learner.has_room.clear()
    for _ in range(3):
        peer = learner.peer(one)
        peer.ask(hello=hello())
        peer.send(push=push(0))
    learner.wait_for_put()
    answer = InThread(peer.receive)
    time.sleep(0.5)
    assert answer.blocked
    assert one.service.sessions.shown()[0].last_contact > time.monotonic() - 0.1
    learner.has_room.set()
    assert answer.wait().duplicate
    assert learner.versions() == [0]
    assert learner.reports.qsize() == 1


def test_a_push_that_failed_is_not_counted(
    learner: FakeLearner, caplog: pytest.LogCaptureFixture
) -> None:
    one = learner.serve()
    learner.failure = RuntimeError("out of memory")
    peer = learner.peer(one)
    peer.ask(hello=hello())
    assert peer.status(push=push(0)) is grpc.StatusCode.INTERNAL
    assert "actor raw failed" in caplog.text
    assert "RuntimeError: out of memory" in caplog.text  # the traceback, for the learner's log
    learner.failure = None
    peer = learner.peer(one)
    peer.ask(hello=hello())
    assert not peer.ask(push=push(0)).duplicate
    assert learner.versions() == [0]
