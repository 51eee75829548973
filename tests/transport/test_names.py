"""A name belongs to one live actor, and what it pushed counts once whatever happens to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from impala_tf.machine import certificates
from impala_tf.transport import HandshakeRefused, LearnerServer, sessions
from tests.helpers.runs import PROJECT
from tests.helpers.waiting import wait_until
from tests.helpers.wire import (
    CODEC,
    FakeLearner,
    Peer,
    bits,
    files_of,
    hello,
    make_unroll,
    push,
)

KILLS = 10
StartActor = Callable[..., subprocess.Popen[str]]
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
def start_actor(directory: Path) -> Iterator[StartActor]:
    """Starts an actor that pushes versions from a number on; kills it when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(one: LearnerServer, name: str, version: int = 0) -> subprocess.Popen[str]:
        address = f"127.0.0.1:{one.port}"
        command = [sys.executable, "-c", _ACTOR, address, str(directory), name, str(version)]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "admitted\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_who_claims_a_taken_name_is_refused_and_does_not_drive_its_owner_out(
    learner: FakeLearner,
) -> None:
    one = learner.serve()
    first = learner.connect(one.port, "actor-3")
    first.push(make_unroll(0))
    wait_until(lambda: one.service.num_acting() == 1)
    for _ in range(20):
        with pytest.raises(HandshakeRefused, match=r"actor-3: .* taken .*127\.0\.0\.1.*--task"):
            learner.connect(one.port, "actor-3").handshake()
    for version in (1, 2):
        first.push(make_unroll(version))
    assert learner.reported(3) == [0, 1, 2]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_the_name_of_an_actor_that_was_killed_or_hangs_is_free(
    learner: FakeLearner, start_actor: StartActor, end: signal.Signals
) -> None:
    one = learner.serve()
    process = start_actor(one, "actor-3")
    wait_until(lambda: learner.unrolls.qsize() > 3)
    wait_until(lambda: one.service.num_acting() == 1)  # its first sign of life has come
    process.send_signal(end)
    began = time.monotonic()
    successor = learner.connect(one.port, "actor-3")
    successor.handshake()
    assert time.monotonic() - began < 20, "it waited for the connection to be given up"
    successor.push(make_unroll(77))
    wait_until(lambda: 77 in learner.versions())
    versions = learner.versions()
    assert versions == [*range(len(versions) - 1), 77]


def test_a_flood_of_names_drives_no_live_actor_out(
    learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All actors of a run may have one certificate. Who is lost is forgotten first."""
    monkeypatch.setattr(sessions, "MOST_NAMES", 5)
    one = learner.serve()
    victim = learner.connect(one.port, "actor-3")
    victim.push(make_unroll(0))
    ghosts: list[Peer] = []

    def is_refused(number: int) -> bool:
        ghost = learner.peer(one)
        ghosts.append(ghost)
        answer = ghost.ask(hello=hello(actor_id=f"ghost-{number}", session=number))
        return "5 actors with its certificate" in str(answer)

    assert [is_refused(number) for number in range(10)] == 4 * [False] + 6 * [True]
    for ghost in ghosts:
        ghost.close()
    wait_until(lambda: one.service.num_acting() == 1)
    assert not any(is_refused(number) for number in range(10, 14))
    victim.push(make_unroll(1))
    assert learner.reported(2) == [0, 1]
    shown = [view.actor_id for view in one.service.sessions.shown()]
    assert shown == ["actor-3", *(f"ghost-{number}" for number in range(10, 14))]


@pytest.fixture
def two_machines(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The learner's folder, and those of two machines with a certificate each."""
    folder = tmp_path / "credentials"
    certificates.create(folder, keep_authority=True)
    one, other = (files_of(folder, machine) for machine in ("10.0.0.7", "10.0.0.8"))
    return folder, one, other


def test_a_name_and_its_session_are_of_one_certificate(
    learner: FakeLearner, two_machines: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, own, others = two_machines
    one = learner.serve(folder=folder)
    owner = learner.peer(one, own)
    owner.ask(hello=hello())
    owner.close()
    wait_until(lambda: one.service.num_acting() == 0)
    for session in (7, 8):
        thief = learner.peer(one, others)
        assert thief.status(hello=hello(session=session)) is grpc.StatusCode.UNAVAILABLE
    owner = learner.peer(one, own)
    owner.ask(hello=hello())
    assert not owner.ask(push=push(0)).duplicate
    owner.close()
    monkeypatch.setattr(sessions, "KEPT_S", 0.1)
    time.sleep(0.2)
    assert learner.peer(one, others).ask(hello=hello(session=8)).run_id == "run-1"


def test_the_pushes_of_one_certificate_do_not_keep_those_of_another_waiting(
    learner: FakeLearner, two_machines: tuple[Path, Path, Path]
) -> None:
    folder, own, others = two_machines
    one = learner.serve(folder=folder, most_waiting_bytes=60 * CODEC.nbytes)
    learner.has_room.clear()
    for number in range(30):
        ghost = learner.peer(one, own)
        ghost.ask(hello=hello(actor_id=f"ghost-{number}", session=number))
        ghost.send(push=push(number))
    honest = learner.peer(one, others)
    honest.ask(hello=hello())
    for _ in range(8):
        learner.wait_for_put()
    time.sleep(0.5)  # the others wait for their turns
    honest.send(push=push(77))
    time.sleep(0.5)
    learner.has_room.set()
    assert not honest.receive().duplicate
    assert learner.reported(20).index(77) < 17, "it had to wait for the whole flood"


@pytest.mark.faults
def test_actors_killed_at_random_moments_leave_whole_unrolls_each_trained_on_once(
    learner: FakeLearner, start_actor: StartActor
) -> None:
    """In the middle of pushes too: on average, a push is on its way most of the time."""
    one = learner.serve()
    rng = np.random.default_rng(1)
    for kill in range(KILLS):
        process = start_actor(one, "a", 1000 * kill)
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
    assert len(one.service.sessions.shown()) == 1
