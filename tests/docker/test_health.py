"""The health check of a container, without containers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
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
from tests.helpers.ports import free_port
from tests.helpers.runs import PROJECT

DOCKER = PROJECT / "docker"
sys.path.insert(0, str(DOCKER))

import health  # noqa: E402


@pytest.fixture(autouse=True)
def work_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "NOTE", tmp_path / "note.json")
    return tmp_path


@pytest.fixture
def learner(tmp_path):
    """Yields the note about a server with a learner's credentials and a status file."""
    certificates.create(tmp_path / "credentials")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    ours = run_credentials.server_credentials(tmp_path / "credentials")
    port = server.add_secure_port("127.0.0.1:0", ours)
    server.start()
    status = tmp_path / "status.json"
    status.write_text(json.dumps({"updated_unix_s": 1e9, "updated_uptime_s": time.monotonic()}))
    authority = tmp_path / "credentials" / "ca.pem"
    name = certificates.LEARNER_NAME
    node_state(tmp_path / "state", learner_0="running")
    yield health.note_about({}, tmp_path / "state", status=str(status), ca=str(authority),
                            address=f"127.0.0.1:{port}", name=name)  # fmt: skip
    server.stop(None)


def test_a_learner_that_answers_is_healthy_and_no_other(learner, tmp_path):
    now_s = time.monotonic()
    assert health.trouble(learner, now_s) == ""
    written_s = json.loads(Path(learner["status"]).read_text())["updated_uptime_s"]
    assert "is 40 s old" in health.trouble(learner, written_s + 40)
    assert "from before" in health.trouble(learner, 60.0 - 1e6), "the machine has rebooted"
    certificates.create(tmp_path / "other")
    another_run = {**learner, "ca": str(tmp_path / "other" / "ca.pem")}
    assert "does not answer" in health.trouble(another_run, now_s)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hung = {**learner, "address": f"127.0.0.1:{silent.getsockname()[1]}"}
        assert "does not answer" in health.trouble(hung, now_s, answer_s=0.3)
    assert "does not answer" in health.trouble(hung, now_s), "the port is closed"
    Path(learner["status"]).unlink()
    assert health.trouble(learner, now_s) == "the learner has not started yet"


def test_a_learner_that_is_stuck_in_an_update_is_unhealthy(learner):
    uptime_s = time.monotonic()
    status = {"state": "training", "updated_unix_s": 1e9, "last_update_unix_s": 1e9 - 59,
              "updated_uptime_s": uptime_s}  # fmt: skip
    Path(learner["status"]).write_text(json.dumps(status))
    assert health.trouble(learner, uptime_s) == ""
    Path(learner["status"]).write_text(json.dumps({**status, "last_update_unix_s": 1e9 - 70}))
    assert (
        health.trouble(learner, uptime_s) == "the learner has not updated its parameters for 70 s"
    )


def test_a_learner_without_actors_is_healthy(learner):
    uptime_s = time.monotonic()
    status = {"state": "training", "updated_unix_s": 1e9, "last_update_unix_s": 1e9 - 500,
              "updated_uptime_s": uptime_s, "starving_since_unix_s": 1e9 - 499}  # fmt: skip
    Path(learner["status"]).write_text(json.dumps(status))
    assert health.trouble(learner, uptime_s) == ""


def test_an_actor_is_healthy_while_its_heartbeat_is_recent(tmp_path):
    beat = Heartbeat(str(tmp_path / "beat"))
    actor = health.note_about({"actor": str(tmp_path / "beat")})
    assert health.trouble(actor, time.monotonic()) == "actor: has not started yet"
    beat.beat()
    assert health.trouble(actor, time.monotonic()) == ""
    beat_s = float((tmp_path / "beat").read_text())
    assert "is 200 s old" in health.trouble(actor, beat_s + 200)


def node_state(path: Path, age_s: float = 0.0, **processes: State) -> None:
    """Writes what a supervisor said of its processes, now or earlier."""
    found = {name.replace("_", "-"): ProcessState(name, state=state) for name, state in
             processes.items()}  # fmt: skip
    now = NodeState("run", "node", 1, 1, "boot", uptime_s() - age_s, time.time(), found)
    write_state(path, now)


def test_a_node_of_actors_is_healthy_while_every_actor_that_runs_is(tmp_path):
    state, beats = tmp_path / "state", {f"actor-{n}": str(tmp_path / f"beat-{n}") for n in (0, 1)}
    pod = health.note_about(beats, state)
    assert health.trouble(pod, time.monotonic()) == "the supervisor has not started yet"
    node_state(state, actor_0="running", actor_1="running")
    Heartbeat(beats["actor-0"]).beat()
    found = health.trouble(pod, time.monotonic())
    assert found == "actor-1: has not started yet"
    Heartbeat(beats["actor-1"]).beat()
    assert health.trouble(pod, time.monotonic()) == ""
    node_state(state, age_s=60, actor_0="running", actor_1="running")
    found = health.trouble(pod, time.monotonic())
    assert re.fullmatch("the supervisor's state is 6[0-9] s old", found), found
    Path(beats["actor-1"]).unlink()
    node_state(state, actor_0="running", actor_1="failed")
    assert health.trouble(pod, time.monotonic()) == "", "killing the pod would end actor-0, too"


def test_a_node_on_a_laptop_that_slept_since_it_booted_is_healthy(tmp_path):
    """Docker would restart it again and again: heartbeats are of a clock that stood still then."""
    state, beat = tmp_path / "state", tmp_path / "beat"
    awake_s = time.monotonic() - 36000
    beat.write_text(str(awake_s))
    node_state(state, actor_0="running")
    assert health.trouble(health.note_about({"actor-0": str(beat)}, state), awake_s) == ""


def test_a_learner_that_waits_for_the_others_is_healthy(learner, tmp_path):
    """Its old status says that it hangs, but the others may have to find a machine first."""
    Path(learner["status"]).unlink()
    node_state(tmp_path / "state", learner_0="gathering")
    assert health.trouble(learner, time.monotonic()) == ""
    node_state(tmp_path / "state", learner_0="running")
    assert health.trouble(learner, time.monotonic()) == "the learner has not started yet"
    status = {"updated_unix_s": 1e9, "updated_uptime_s": time.monotonic()}
    Path(learner["status"]).write_text(json.dumps(status))
    assert health.trouble(learner, time.monotonic()) == ""
    closed = {**learner, "address": f"127.0.0.1:{free_port()}"}
    assert "does not answer" in health.trouble(closed, time.monotonic())


def test_the_check_prints_one_line(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(DOCKER / "health.py")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)

    done = check()
    assert (done.returncode, done.stdout) == (
        1,
        "no learner or actor was started in this container\n",
    )
    Heartbeat(str(tmp_path / "beat")).beat()
    written = health.note_about({"actor": str(tmp_path / "beat")})
    (tmp_path / "impala_tf-process.json").write_text(json.dumps(written))
    done = check()
    assert (done.returncode, done.stdout) == (0, "healthy\n")


def test_the_check_imports_little():
    """It runs every few seconds during a run."""
    code = "import sys, health; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=DOCKER, capture_output=True, text=True, timeout=240
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"impala_tf", "grpc", "numpy", "tensorflow", "cryptography"}
