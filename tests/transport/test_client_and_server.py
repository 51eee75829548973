"""Actors and a learner over real gRPC: what arrives, how often it counts, who is seen."""

from __future__ import annotations

import threading
import time

import grpc
import pytest
import tree

from impala_tf.machine.process_memory import peak_mib
from impala_tf.transport import (
    TransportError,
    sessions,
)
from impala_tf.types import ActorReport, EnvOutput, Episode, Unroll
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    PATIENCE_S,
    RUN,
    FakeLearner,
    InThread,
    bits,
    hello,
    make_parameters,
    make_unroll,
    push,
)

# --- what arrives ---


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


def test_an_actor_that_asks_again_and_again_waits_in_between(learner: FakeLearner) -> None:
    """Actors of ppo do so until there are new parameters; a display would blame the network."""
    actor = learner.connect(learner.serve().port)
    learner.parameters.publish(3, make_parameters(0.0))
    actor.push(make_unroll(version=3))
    for _ in range(10):
        assert actor.fetch_parameters(3) is None
        time.sleep(0.05)
    actor.push(make_unroll(version=3))
    assert actor.push_wait_fraction > 0.6


def test_numbers_of_infos_arrive_with_their_episodes(learner: FakeLearner) -> None:
    """And an actor that sends others than the learner expects is refused."""
    one = learner.serve(terms=RUN._replace(num_infos=2))
    games = [Episode(1.0, 9, info=(0.5, None)), Episode(2.0, 9, info=(None, -3.0))]
    learner.connect(one.port).push(make_unroll(version=1), games)
    assert learner.reports.get(timeout=PATIENCE_S)[2] == games
    with pytest.raises(TransportError, match="episode_infos: expected 2 for each of 1"):
        actor = learner.connect(one.port, "other")
        actor.push(make_unroll(version=2), [Episode(1.0, 9, info=(0.5,))])
        actor.push(make_unroll(version=3))


def test_the_learner_sees_its_actors(learner: FakeLearner) -> None:
    one = learner.serve()
    assert one.service.actors() == []
    before = time.monotonic()
    first, second = learner.connect(one.port, "actor-1"), learner.connect(one.port, "actor-0")
    first.handshake()
    second.push(make_unroll(3, n=2), report=ActorReport(10.0))
    second.push(make_unroll(4, n=5), report=ActorReport(20.0))
    assert learner.reported(2) == [3, 4]
    wait_until(lambda: one.service.actors()[0].parameter_version == 4)
    busy, idle = one.service.actors()
    assert (busy.actor_id, busy.host) == ("actor-0", "127.0.0.1")
    assert busy.report.agent_steps_per_s == 20.0
    assert (idle.actor_id, idle.parameter_version) == ("actor-1", -1)
    assert before <= idle.last_contact <= busy.last_contact <= time.monotonic()
    assert not busy.told_run_over


def test_what_keeps_an_actor_from_acting_is_known_until_its_next_push(learner: FakeLearner) -> None:
    one = learner.serve()
    actor = learner.connect(one.port)
    actor.report("nobody listens before the handshake, and that is no failure")
    actor.handshake()
    actor.report("its environments broke\x1b[2J" + "!" * 10_000)
    wait_until(lambda: one.service.actors()[0].trouble)
    (seen,) = one.service.actors()
    assert seen.trouble.startswith("its environments broke?[2J!!!") and len(seen.trouble) < 1000
    actor.push(make_unroll(0))
    assert learner.reported(1) == [0]
    wait_until(lambda: one.service.actors()[0].trouble == "")


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


def test_an_actor_never_sees_half_a_version(learner: FakeLearner) -> None:
    actor = learner.connect(learner.serve().port)
    done = threading.Event()

    def publish() -> int:
        version = 0
        while not done.is_set():
            version += 1
            learner.parameters.publish(version, make_parameters(version))
        return version

    publisher = InThread(publish)
    seen = [-1]
    try:
        while len(seen) < 200:
            got = actor.fetch_parameters(seen[-1])
            if got is not None:
                seen.append(got[0])
                assert all((tensor == got[0]).all() for tensor in got[1])
    finally:
        done.set()
    assert seen[-1] <= publisher.wait()
    assert sorted(set(seen)) == seen


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


def test_a_restarted_actor_counts_from_zero_again(learner: FakeLearner) -> None:
    one = learner.serve()
    for session in (1, 2):
        peer = learner.peer(one)
        peer.ask(hello=hello(session=session))
        assert not peer.ask(push=push(0)).duplicate
        peer.close()


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
    assert one.service.actors()[0].last_contact > time.monotonic() - 0.1
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


# --- which actors the learner sees ---


def test_an_actor_is_told_which_start_it_is(learner: FakeLearner) -> None:
    """Its seeds depend on it. It is the same actor when its learner was restarted."""
    one = learner.another().serve()
    actor = learner.connect(one.port)
    actor.handshake()
    port = one.port
    one.stop(0)
    one = learner.another().serve(port, terms=RUN._replace(run_steps=500))
    wait_until(one.service.num_acting)
    assert (actor.run_steps, actor.restarts) == (0, 0)
    for restarts in (1, 2):
        actor.close()
        actor = learner.connect(port)
        actor.handshake()
        assert (actor.run_steps, actor.restarts) == (500, restarts)


def test_an_actor_is_shown_while_its_stream_is_open_and_for_a_while_after(
    learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a slow level may take minutes; the log would say that no actor has connected."""
    monkeypatch.setattr(sessions, "SHOWN_S", 0.3)
    one = learner.serve()
    peer = learner.peer(one)
    peer.ask(hello=hello())
    peer.ask(push=push(0))
    time.sleep(1.0)
    (view,) = one.service.actors()
    assert view.is_present
    assert time.monotonic() - view.last_contact > 0.5  # which the display shows
    peer.close()
    wait_until(lambda: one.service.actors() == [])
    learner.peer(one).ask(hello=hello())
    (view,) = one.service.actors()
    assert view.parameter_version == 0  # of its earlier push
