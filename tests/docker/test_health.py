"""The health check of a container, without containers."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from impala_tf.cluster.node.state import NodeState, uptime_s
from impala_tf.cluster.node.state import write as write_state
from impala_tf.machine import certificates
from impala_tf.machine.supervision import ProcessState, State
from impala_tf.processes.actor_main import Heartbeat
from impala_tf.transport import credentials as run_credentials
from tests.helpers.runs import PROJECT

DOCKER = PROJECT / "docker"
sys.path.insert(0, str(DOCKER))

import health  # noqa: E402


def write_status(learner, **status):
    now = {"updated_unix_s": 1e9, "updated_uptime_s": time.monotonic(), **status}
    Path(learner["status"]).write_text(json.dumps(now))


def node_state(path: Path, age_s: float = 0.0, **processes: State) -> None:
    """Writes what a supervisor said of its processes, now or earlier."""
    found = {name.replace("_", "-"): ProcessState(name, state=state) for name, state in
             processes.items()}  # fmt: skip
    now = NodeState("run", "node", 1, 1, "boot", uptime_s() - age_s, time.time(), found)
    write_state(path, now)


@pytest.fixture
def learner(tmp_path):
    """Yields the note about a server with a learner's credentials and a status file."""
    certificates.create(tmp_path / "credentials")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    ours = run_credentials.server_credentials(tmp_path / "credentials")
    port = server.add_secure_port("127.0.0.1:0", ours)
    server.start()
    note = health.note_about({}, tmp_path / "state", status=str(tmp_path / "status.json"),
                             ca=str(tmp_path / "credentials" / "ca.pem"),
                             address=f"127.0.0.1:{port}",
                             name=certificates.LEARNER_NAME)  # fmt: skip
    write_status(note)
    node_state(tmp_path / "state", learner_0="running")
    yield note
    server.stop(None)


def test_a_learner_that_answers_is_healthy_and_no_other(learner, tmp_path):
    now_s = time.monotonic()
    assert health.trouble(learner, now_s) == ""
    assert " s old" in health.trouble(learner, now_s + 40)
    certificates.create(tmp_path / "other")
    another_run = {**learner, "ca": str(tmp_path / "other" / "ca.pem")}
    assert "does not answer" in health.trouble(another_run, now_s)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hung = {**learner, "address": f"127.0.0.1:{silent.getsockname()[1]}"}
        assert "does not answer" in health.trouble(hung, now_s, answer_s=0.3)
    Path(learner["status"]).unlink()
    assert health.trouble(learner, now_s) == "the learner has not started yet"
    node_state(tmp_path / "state", learner_0="gathering")
    assert health.trouble(learner, now_s) == "", "it waits for the others of its group"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"last_update_unix_s": 1e9 - 59}, ""),
        ({"last_update_unix_s": 1e9 - 70}, "the learner has not updated its parameters for 70 s"),
        ({"last_update_unix_s": 1e9 - 70, "starving_since_unix_s": 1e9 - 69}, ""),
    ],
    ids=["updating", "stuck", "without actors"],
)
def test_a_learner_that_is_stuck_in_an_update_is_unhealthy(learner, status, expected):
    write_status(learner, state="training", **status)
    assert health.trouble(learner, time.monotonic()) == expected


def test_a_node_of_actors_is_healthy_while_every_actor_that_runs_is(tmp_path):
    state, beats = tmp_path / "state", {f"actor-{n}": str(tmp_path / f"beat-{n}") for n in (0, 1)}
    pod = health.note_about(beats, state)
    assert health.trouble(pod, time.monotonic()) == "the supervisor has not started yet"
    Heartbeat(beats["actor-0"]).beat()
    node_state(state, actor_0="running", actor_1="running")
    assert health.trouble(pod, time.monotonic()) == "actor-1: has not started yet"
    node_state(state, actor_0="running", actor_1="failed")
    assert health.trouble(pod, time.monotonic()) == "", "killing the pod would end actor-0, too"
    assert "heartbeat is 20" in health.trouble(pod, time.monotonic() + 200)
    node_state(state, age_s=60, actor_0="running", actor_1="failed")
    found = health.trouble(pod, time.monotonic())
    assert re.fullmatch("the supervisor's state is 6[0-9] s old", found), found


def test_a_node_on_a_laptop_that_slept_since_it_booted_is_healthy(tmp_path):
    """Docker would restart it again and again: heartbeats are of a clock that stood still then."""
    state, beat = tmp_path / "state", tmp_path / "beat"
    awake_s = time.monotonic() - 36000
    beat.write_text(str(awake_s))
    node_state(state, actor_0="running")
    assert health.trouble(health.note_about({"actor-0": str(beat)}, state), awake_s) == ""
