"""Signs of life: of an actor for whoever looks after it, and of actors for the learner."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from impala_tf.config import ConfigError
from impala_tf.processes.heartbeat import Heartbeat
from impala_tf.transport import ActorClient, ClientClosed, service
from tests.wire import (
    PATIENCE_S,
    RUN,
    SPECS,
    Connect,
    FakeLearner,
    InThread,
    Serve,
    make_parameters,
    make_unroll,
)

pytest_plugins = ["tests.wire_fixtures"]


def test_a_beat_makes_the_file_and_then_makes_it_younger(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    heartbeat = Heartbeat(str(path))
    assert not path.exists()
    heartbeat.beat()
    first = path.stat().st_mtime_ns
    heartbeat.beat()
    assert path.stat().st_mtime_ns >= first


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Heartbeat(None).beat()
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_the_process_before_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "beat").touch()
    Heartbeat(str(tmp_path / "beat"))
    assert not (tmp_path / "beat").exists()


def test_a_path_that_cannot_be_written_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--heartbeat_path=.*: No such file"):
        Heartbeat(str(tmp_path / "nowhere" / "beat"))


def test_an_actor_tries_and_tries_while_its_learner_is_away(serve: Serve, directory: Path) -> None:
    gone = serve(FakeLearner())
    gone.stop(0)
    tries = threading.Semaphore(0)
    actor = ActorClient(
        f"127.0.0.1:{gone.port}", directory, "a", SPECS, RUN.config_digest, on_call=tries.release
    )
    handshake = InThread(actor.handshake)
    for _ in range(3):
        assert tries.acquire(timeout=PATIENCE_S)
    actor.close()
    assert isinstance(handshake.wait(), ClientClosed)


def test_an_actor_without_contact_is_hidden_until_it_reconnects(
    serve: Serve, connect: Connect, learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = serve(learner)
    actor = connect(one.port)
    learner.parameters.publish(0, make_parameters(0.0))
    actor.handshake()
    actor.push(make_unroll(0))
    learner.reports.get(timeout=PATIENCE_S)
    monkeypatch.setattr(service, "_SHOWN_S", -1.0)
    assert one.actors() == []
    monkeypatch.setattr(service, "_SHOWN_S", 300.0)
    actor.fetch_parameters(-1)
    (view,) = one.actors()
    assert view.unrolls == 2  # what it did before is remembered
