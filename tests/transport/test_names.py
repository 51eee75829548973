"""A name belongs to one live actor, and what it pushed counts once whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from impala_tf.machine import certificates
from impala_tf.transport import HandshakeRefused, impala_pb2, sessions
from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    CODEC,
    Connect,
    FakeLearner,
    Serve,
    StubOf,
    bits,
    files_of,
    handshake_request,
    make_parameters,
    make_unroll,
    push_request,
)

KILLS = int(os.environ.get("IMPALA_TF_KILLS", "20"))
_ACTOR = """
import sys
from pathlib import Path
from impala_tf.transport import ActorClient
from tests.helpers.wire import SPECS, RUN, make_unroll
address, credentials, name, version = *sys.argv[1:4], int(sys.argv[4])
actor = ActorClient(address, Path(credentials), name, SPECS, RUN.config_digest, num_environments=8)
actor.handshake()
print("admitted", flush=True)
while True:
    actor.push(make_unroll(version))
    version += 1
"""


@pytest.fixture
def actor_processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_who_claims_a_taken_name_is_refused_and_does_not_drive_its_owner_out(
    serve: Serve, connect: Connect, learner: FakeLearner, caplog: pytest.LogCaptureFixture
) -> None:
    one = serve(learner)
    first = connect(one.port, "actor-3")
    first.push(make_unroll(0))
    wait_until(lambda: one.service.num_acting() == 1)
    for _ in range(20):
        with pytest.raises(HandshakeRefused, match=r"actor-3: .* taken .*127\.0\.0\.1.*--task"):
            connect(one.port, "actor-3").handshake()
    assert "refused actor actor-3" in caplog.text
    for version in (1, 2):
        first.push(make_unroll(version))
    assert learner.reported(3) == [0, 1, 2]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_the_name_of_an_actor_that_was_killed_or_hangs_is_free(
    serve: Serve, connect: Connect, learner: FakeLearner, directory: Path,
    actor_processes: list[subprocess.Popen[str]], end: signal.Signals,
) -> None:  # fmt: skip
    one = serve(learner)
    address = f"127.0.0.1:{one.port}"
    command = [sys.executable, "-c", _ACTOR, address, str(directory), "actor-3", "0"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    actor_processes.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "admitted\n"
    wait_until(lambda: learner.unrolls.qsize() > 3)
    wait_until(lambda: one.service.num_acting() == 1)  # its first sign of life has come
    process.send_signal(end)
    began = time.monotonic()
    successor = connect(one.port, "actor-3")
    successor.handshake()
    assert time.monotonic() - began < 20, "it waited for the connection to be given up"
    successor.push(make_unroll(77))
    wait_until(lambda: 77 in learner.versions())
    versions = learner.versions()
    assert versions == [*range(len(versions) - 1), 77]


def test_a_learner_remembers_a_limited_number_of_names(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it forgot, it takes for new."""
    monkeypatch.setattr(sessions, "MOST_NAMES", 5)
    one = serve(learner)
    stub = stub_of(one)

    def push(number: int) -> impala_pb2.Outcome:
        about = {"actor_id": f"actor-{number}", "session": number}
        stub.Handshake(handshake_request(**about))
        outcome: impala_pb2.Outcome = stub.PushUnroll(push_request(0, **about)).outcome
        return outcome

    assert [push(number) for number in range(50)] == [impala_pb2.OK] * 50
    assert len(one.service.actors()) == 5
    assert [push(49), push(0)] == [impala_pb2.DUPLICATE, impala_pb2.OK]


def test_a_flood_of_names_drives_no_live_actor_out(
    serve: Serve, connect: Connect, stub_of: StubOf, learner: FakeLearner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All actors of a run may have one certificate."""
    monkeypatch.setattr(sessions, "MOST_NAMES", 5)
    one = serve(learner)
    victim = connect(one.port, "actor-3")
    victim.push(make_unroll(0))
    wait_until(lambda: one.service.num_acting() == 1)
    flood = stub_of(one)
    for number in range(50):
        flood.Handshake(handshake_request(actor_id=f"ghost-{number}", session=number))
    session = one.service.sessions.views()[0]
    assert session.actor_id == "actor-3" and session.is_present
    victim.push(make_unroll(1))
    assert learner.reported(2) == [0, 1]
    assert [view.actor_id for view in one.service.sessions.views()].count("actor-3") == 1


@pytest.fixture
def two_machines(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The learner's folder, and those of two machines with a certificate each."""
    folder = tmp_path / "credentials"
    certificates.create(folder, keep_authority=True)
    one, other = (files_of(folder, machine) for machine in ("10.0.0.7", "10.0.0.8"))
    return folder, one, other


def test_a_name_and_its_session_are_of_one_certificate(
    serve: Serve, connect: Connect, stub_of: StubOf, learner: FakeLearner,
    two_machines: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder, own, others = two_machines
    one = serve(learner, folder=folder)
    about = {"actor_id": "actor-3", "session": 7}
    owner, thief = stub_of(one, own), stub_of(one, others)
    owner.Handshake(handshake_request(**about))  # and keeps no call open, as while it reconnects
    for ask in (
        lambda: thief.PushUnroll(push_request(0, **about)),
        lambda: thief.Handshake(handshake_request(actor_id="actor-3", session=8)),
        lambda: thief.Handshake(handshake_request(**about)),
    ):
        with pytest.raises(grpc.RpcError):
            ask()
    assert owner.PushUnroll(push_request(0, **about)).outcome == impala_pb2.OK
    monkeypatch.setattr(sessions, "KEPT_S", 0.1)
    time.sleep(0.2)
    assert thief.Handshake(handshake_request(actor_id="actor-3", session=8)).outcome == (
        impala_pb2.OK
    )


def test_the_pushes_of_one_certificate_do_not_keep_those_of_another_waiting(
    serve: Serve, stub_of: StubOf, learner: FakeLearner, two_machines: tuple[Path, Path, Path]
) -> None:
    folder, own, others = two_machines
    one = serve(learner, folder=folder, most_waiting_bytes=60 * CODEC.nbytes)
    learner.has_room.clear()
    pushes = []
    for number in range(30):  # a connection may have few open calls
        about, ghost = {"actor_id": f"ghost-{number}", "session": number}, stub_of(one, own)
        ghost.Handshake(handshake_request(**about))
        pushes.append(ghost.PushUnroll.future(push_request(number, **about)))
    honest = stub_of(one, others)
    honest.Handshake(handshake_request())
    for _ in range(8):
        learner.wait_for_put()
    time.sleep(0.5)  # the others wait for their turns
    waits = honest.PushUnroll.future(push_request(77))
    time.sleep(0.5)
    learner.has_room.set()
    assert waits.result(timeout=30).outcome == impala_pb2.OK
    assert learner.reported(20).index(77) < 17, "it had to wait for the whole flood"


def test_an_actor_that_waits_for_room_is_not_shown_as_silent(
    serve: Serve, connect: Connect, learner: FakeLearner
) -> None:
    one = serve(learner)
    learner.parameters.publish(0, make_parameters(0.0))
    learner.has_room.clear()
    connect(one.port).push(make_unroll(0))
    learner.wait_for_put()
    began = time.monotonic()
    time.sleep(0.5)
    assert one.service.actors()[0].last_contact > began + 0.4
    learner.has_room.set()


@pytest.mark.faults
def test_actors_killed_at_random_moments_leave_whole_unrolls_each_trained_on_once(
    serve: Serve, learner: FakeLearner, directory: Path,
    actor_processes: list[subprocess.Popen[str]],
) -> None:  # fmt: skip
    """In the middle of pushes too: on average, a push is on its way most of the time."""
    one = serve(learner)
    address = f"127.0.0.1:{one.port}"
    rng = np.random.default_rng(1)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    for kill in range(KILLS):
        command = [sys.executable, "-c", _ACTOR, address, str(directory), "a", str(1000 * kill)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        actor_processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "admitted\n", "the name of a dead actor was not free"
        time.sleep(rng.exponential(0.1))
        process.kill()
        process.wait()
    unrolls = list(learner.unrolls.queue)
    versions = [int(unroll.parameter_version[0]) for unroll in unrolls]
    assert len(set(versions)) == len(versions) > KILLS
    for kill in range(KILLS):  # of every actor the first ones, without a gap
        own = [v - 1000 * kill for v in versions if v // 1000 == kill]
        assert own == list(range(len(own)))
    for unroll, version in zip(unrolls, versions, strict=True):
        assert bits(unroll) == bits(make_unroll(version))
    one.service.sessions.release()
    assert len(one.service.actors()) == 1
