"""What containers run, tested without containers: entry point, health check, credentials, files."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest
import yaml

from impala_tf import config as configs
from impala_tf.config import command_line
from impala_tf.frontend import requirements
from impala_tf.frontend.node.state import NodeState, Orders, read_orders, uptime_s
from impala_tf.frontend.node.state import write as write_state
from impala_tf.machine import certificates
from impala_tf.machine.supervision import ProcessState, State
from impala_tf.processes.heartbeat import Heartbeat
from impala_tf.transport import credentials as run_credentials
from tests.helpers.ports import free_port

DOCKER = Path(__file__).parents[2] / "docker"
sys.path.insert(0, str(DOCKER))

import credentials  # noqa: E402
import entrypoint  # noqa: E402
import health  # noqa: E402


@pytest.fixture(autouse=True)
def work_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(entrypoint, "WORK", tmp_path)
    monkeypatch.setattr(health, "NOTE", tmp_path / "note.json")
    return tmp_path


def note() -> dict[str, str]:
    return json.loads(health.NOTE.read_text())


def flags_of(command: list[str]) -> configs.Given:
    """The flags of a command of run_experiment.py."""
    script = next(n for n, word in enumerate(command) if word.endswith("run_experiment.py"))
    return command_line.parse(command[script + 1 :])


# --- the entry point ---


def test_replicas_with_the_same_flags_get_different_numbers(monkeypatch):
    tasks = set()
    for name in ("0f3a9c21b7de", "c0ffee5a11ad", "actor-6d4f9-x2x7z"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        commands = [entrypoint.command("actor", ["--learner_hosts=l:1"]) for _ in range(2)]
        assert commands[0] == commands[1]
        tasks.add(flags_of(commands[0])["task"])
    assert len(tasks) == 3
    assert all(0 <= task < 2**31 for task in tasks)


@pytest.mark.parametrize("given", [["--task=3"], ["--task", "3"]])
def test_a_given_task_is_kept(given):
    command = entrypoint.command("actor", ["--learner_hosts=l:1", *given])
    assert flags_of(command)["task"] == 3


def test_a_learner_leaves_a_note_for_the_health_check():
    given = ["--learner_hosts=learner:8001", "--logdir=/runs/x", "--credentials=/c"]
    flags = flags_of(entrypoint.command("learner", given))
    assert (flags["job_name"], flags["logdir"]) == ("learner", "/runs/x")
    assert note() == {
        "status": "/runs/x/status.json",
        "address": "learner:8001",
        "ca": "/c/ca.pem",
        "name": certificates.LEARNER_NAME,
    }


def test_learners_of_a_group_wait_for_each_other_before_they_start(work_folder):
    hosts = "--learner_hosts=learner-0:8001,learner-1:8001"
    orders: list[Orders] = []
    for task in (0, 1):
        command = entrypoint.command("learner", [hosts, "--logdir=/runs/x", f"--task={task}"])
        assert command[1:3] == ["-m", "impala_tf.frontend.node.supervisor"]
        assert command[4:] == ["--echo"], "docker logs must show what the learner prints"
        orders.append(read_orders(Path(command[3])))
        (process,) = orders[task].processes
        assert flags_of(["python", *process.arguments])["task"] == task
        group = process.group
        assert group is not None
        assert (group.number, group.is_spread) == (task, True)
        assert (group.hosts, group.rendezvous_port) == (("learner-0", "learner-1"), 8002)
    assert orders[0].run_id == orders[1].run_id
    assert note()["status"] == "/runs/x/status-1.json"


COMMON = ("--level_name=CartPole-v1", "--learner_hosts=p-learner-0.p:8001", "--logdir=/runs/p",
          "--credentials=/credentials", "--actors_per_node=3")  # fmt: skip


def test_a_pod_of_learners_leaves_a_note_about_its_learner_and_its_supervisor(monkeypatch):
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    flags = flags_of(entrypoint.command("join", ["--job_name=learner", *COMMON]))
    assert (flags["job_name"], flags["task"], flags["join"]) == ("learner", 0, True)
    assert note() == {
        "supervisor": "/runs/p/processes/node-learner-0.state.json",
        "heartbeats": {},
        "status": "/runs/p/status.json",
        "address": "p-learner-0.p:8001",
        "ca": "/credentials/ca.pem",
        "name": certificates.LEARNER_NAME,
    }


def test_a_pod_of_actors_has_a_heartbeat_for_each_of_them(monkeypatch, work_folder):
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    flags = flags_of(entrypoint.command("join", ["--job_name=actor", *COMMON]))
    assert (flags["job_name"], flags["task"]) == ("actor", 2)
    beats = {f"actor-{n}": f"{work_folder}/impala_tf-heartbeat-{n}" for n in (6, 7, 8)}
    assert note() == {
        "supervisor": "/runs/p/processes/node-actor-2.state.json",
        "heartbeats": beats,
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "name a role: learner, actor, join or credentials"),
        (["learner", "--learner_hosts=l:1"], "--logdir: name a folder on a volume"),
        (["learner", "--learner_hosts=l:1", "--logdir=x", "--task=1"], "--task=1: "),
        (["actor"], "--job_name=actor: needs --learner_hosts"),
        (["join", "--logdir=x"], "--join: no variable says which node this is"),
        (["join", "--job_name=learner", "--learner_hosts=l:1"], "join: needs --logdir"),
        (["actor", "--learner_hosts=l:1", "--levle_name=x"], "--levle_name: no such flag"),
        (["no-such-command"], "no-such-command: No such file"),
    ],
)
def test_unusable_arguments_give_one_line(arguments, problem, capsys):
    assert entrypoint.main(arguments) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert problem in said[0]


def test_other_commands_are_run_unchanged():
    assert entrypoint.command("tensorboard", ["--logdir=/runs"]) == [
        "tensorboard",
        "--logdir=/runs",
    ]


# --- the health check ---


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
    yield health.learner_note(status, f"127.0.0.1:{port}", authority, name)
    server.stop(None)


def test_a_learner_that_answers_is_healthy(learner):
    assert health.trouble(learner, time.monotonic()) == ""


def test_a_learner_with_an_old_status_is_unhealthy(learner):
    assert "is 40 s old" in health.trouble(learner, time.monotonic() + 40)


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


def test_a_learner_without_actors_is_healthy_and_says_since_when_it_starves(learner, capsys):
    uptime_s = time.monotonic()
    status = {"state": "training", "updated_unix_s": 1e9, "last_update_unix_s": 1e9 - 500,
              "updated_uptime_s": uptime_s, "starving_since_unix_s": 1e9 - 499,
              "storage_trouble": {"since_unix_s": 1e9, "text": "cannot write metrics: full"},
              }  # fmt: skip
    Path(learner["status"]).write_text(json.dumps(status))
    health.NOTE.write_text(json.dumps(learner))
    assert health.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("healthy, but starving since ")
    assert said.endswith("but it cannot write metrics: full\n")


def test_a_status_from_before_a_reboot_is_unhealthy(learner):
    assert "from before" in health.trouble(learner, 60.0 - 1e6)


def test_a_learner_that_has_not_started_is_unhealthy(learner):
    Path(learner["status"]).unlink()
    assert health.trouble(learner, time.monotonic()) == "the learner has not started yet"


def test_a_learner_of_another_run_is_unhealthy(learner, tmp_path):
    certificates.create(tmp_path / "other")
    other = {**learner, "ca": str(tmp_path / "other" / "ca.pem")}
    assert "does not answer" in health.trouble(other, time.monotonic())


def test_a_learner_whose_port_is_closed_is_unhealthy(learner):
    closed = {**learner, "address": f"127.0.0.1:{free_port()}"}
    assert "does not answer" in health.trouble(closed, time.monotonic())


def test_a_learner_that_does_not_answer_in_time_is_unhealthy(learner):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hung = {**learner, "address": f"127.0.0.1:{silent.getsockname()[1]}"}
        assert "does not answer" in health.trouble(hung, time.monotonic(), answer_s=0.3)


def test_an_actor_is_healthy_while_its_heartbeat_is_recent(tmp_path):
    beat = Heartbeat(str(tmp_path / "beat"))
    actor = health.actor_note(tmp_path / "beat")
    assert health.trouble(actor, time.monotonic()) == "the actor has not started yet"
    beat.beat()
    assert health.trouble(actor, time.monotonic()) == ""
    assert "is 200 s old" in health.trouble(actor, time.monotonic() + 200)


def node_state(path: Path, **processes: State) -> None:
    """Writes what a supervisor says of its processes, now."""
    found = {name.replace("_", "-"): ProcessState(name, state=state) for name, state in
             processes.items()}  # fmt: skip
    now = NodeState("run", "node", 1, 1, "boot", uptime_s(), time.time(), found)
    write_state(path, now)


def test_a_node_of_actors_is_healthy_while_every_actor_that_runs_is(tmp_path):
    state, beats = tmp_path / "state", {f"actor-{n}": str(tmp_path / f"beat-{n}") for n in (0, 1)}
    pod = health.node_note(state, beats)
    assert health.trouble(pod, time.monotonic()) == "the supervisor has not started yet"
    node_state(state, actor_0="running", actor_1="running")
    Heartbeat(beats["actor-0"]).beat()
    found = health.trouble(pod, time.monotonic())
    assert found == "actor-1: the actor has not started yet"
    Heartbeat(beats["actor-1"]).beat()
    assert health.trouble(pod, time.monotonic()) == ""
    assert "the supervisor's state is 60 s old" in health.trouble(pod, time.monotonic() + 60)
    Path(beats["actor-1"]).unlink()
    node_state(state, actor_0="running", actor_1="failed")
    assert health.trouble(pod, time.monotonic()) == "", "killing the pod would end actor-0, too"


def test_a_learner_that_waits_for_the_others_is_healthy(learner, tmp_path):
    """Its old status says that it hangs, but the others may have to find a machine first."""
    pod = {**health.node_note(tmp_path / "state"), **learner}
    Path(learner["status"]).unlink()
    node_state(tmp_path / "state", learner_0="gathering")
    assert health.trouble(pod, time.monotonic()) == ""
    node_state(tmp_path / "state", learner_0="running")
    assert health.trouble(pod, time.monotonic()) == "the learner has not started yet"
    status = {"updated_unix_s": 1e9, "updated_uptime_s": time.monotonic()}
    Path(learner["status"]).write_text(json.dumps(status))
    assert health.trouble(pod, time.monotonic()) == ""
    closed = {**pod, "address": f"127.0.0.1:{free_port()}"}
    assert "does not answer" in health.trouble(closed, time.monotonic())


def test_the_check_prints_one_line(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(DOCKER / "health.py")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    done = check()
    assert (done.returncode, done.stdout) == (
        1,
        "no learner or actor was started in this container\n",
    )
    Heartbeat(str(tmp_path / "beat")).beat()
    written = health.actor_note(tmp_path / "beat")
    (tmp_path / "impala_tf-process.json").write_text(json.dumps(written))
    done = check()
    assert (done.returncode, done.stdout) == (0, "healthy\n")


def test_the_check_imports_little():
    """It runs every few seconds during a run."""
    code = "import sys, health; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=DOCKER, capture_output=True, text=True, timeout=60
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"impala_tf", "grpc", "numpy", "tensorflow", "cryptography"}


# --- credentials ---


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_learners_and_actors_get_only_their_own_files(tmp_path):
    learner, actor = tmp_path / "learner", tmp_path / "actor"
    assert credentials.main([str(learner), str(actor)]) == 0
    assert names(learner) == sorted(certificates.LEARNER_FILES)
    assert names(actor) == sorted(certificates.ACTOR_FILES)
    for folder in (learner, actor):
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_usable_credentials_are_kept(tmp_path):
    learner, actor = tmp_path / "learner", tmp_path / "actor"
    assert credentials.ensure(learner, actor)
    before = (learner / "ca.pem").read_bytes()
    assert not credentials.ensure(learner, actor)
    assert (learner / "ca.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["learner/learner.key", "actor/actor.pem", "actor/ca.pem"])
def test_unusable_credentials_are_replaced_for_both(tmp_path, name):
    learner, actor = tmp_path / "learner", tmp_path / "actor"
    credentials.ensure(learner, actor)
    (tmp_path / name).unlink()
    assert credentials.ensure(learner, actor)
    assert (learner / "ca.pem").read_bytes() == (actor / "ca.pem").read_bytes()
    assert names(actor) == sorted(certificates.ACTOR_FILES)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert credentials.main([str(tmp_path / "file" / "x"), str(tmp_path / "actor")]) == 2
    assert "Not a directory" in capsys.readouterr().err


# --- packages ---


def test_an_actor_needs_only_the_packages_of_its_image():
    # {what pip installs: how it is imported}. Others are tools.
    not_installed = {
        "av": "av", "opencv-python-headless": "cv2", "paramiko": "paramiko", "pygame-ce": "pygame",
        "tensorflow": "tensorflow", "dm-sonnet": "sonnet", "tensorboard": "tensorboard",
    }  # fmt: skip
    extra = set(requirements.of_role("learner")) - set(requirements.of_role("actor"))
    assert {requirement.split("==")[0] for requirement in extra} == {*not_installed, "uv"}
    code = (
        "import sys\n"
        f"for name in {[*not_installed.values(), 'impala_tf.frontend']}:\n"
        "    sys.modules[name] = None  # importing it raises ImportError\n"
        "import run_experiment, impala_tf.processes.actor_main\n"
        "from impala_tf.config import command_line\n"
        "from impala_tf.environments import suites\n"
        "from impala_tf.processes import common\n"
        "for name in ('PongNoFrameskip-v4', 'CartPole-v1'):\n"
        "    config, _ = common.resolve(command_line.parse([f'--level_name={name}']))\n"
        "    suites.make(config.environment, 2, 1).close()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=DOCKER.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


# --- the Compose file ---


def environment() -> dict[str, str]:
    lines = (DOCKER / ".env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def compose() -> dict:
    """docker-compose.yml with the variables of .env filled in."""
    text = (DOCKER / "docker-compose.yml").read_text()
    values = environment()
    return yaml.safe_load(re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: values.get(m[1]) or m[2], text))


SERVICES = compose()["services"]
PROCESSES = {
    name: service
    for name, service in SERVICES.items()
    if shlex.split(service["command"])[0] in ("learner", "actor")
}


def words(service: dict) -> list[str]:
    return shlex.split(service["command"])


def given_to(name: str) -> configs.Given:
    role, *given = words(PROCESSES[name])
    return command_line.parse([f"--job_name={role}", *given])


@pytest.mark.parametrize("name", PROCESSES)
def test_the_flags_of_every_service_are_valid(name):
    given = given_to(name)
    assert given["level_name"] == environment()["LEVEL_NAME"]
    for host in configs.split(given["learner_hosts"]):
        assert host.partition(":")[0] in SERVICES


def test_all_processes_belong_to_the_same_run():
    digests = {configs.wire_digest(configs.resolve(given_to(name), "atari")) for name in PROCESSES}
    assert len(digests) == 1


@pytest.mark.parametrize("profile", ["one-learner", "two-learners"])
def test_every_learner_of_a_profile_has_actors_and_one_profile_is_the_default(profile):
    members = {n: s for n, s in PROCESSES.items() if s["profiles"] == [profile]}
    hosts = {given_to(name)["learner_hosts"] for name in members if name.startswith("actor")}
    learners = [name for name in members if name.startswith("learner")]
    assert hosts == {f"{name}:8001" for name in learners}
    for name in learners:
        given = given_to(name)
        assert configs.split(given["learner_hosts"])[given["task"]] == f"{name}:8001"
    assert environment()["COMPOSE_PROFILES"] == "one-learner"


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_are_isolated_and_see_only_their_own_credentials(name):
    service = PROCESSES[name]
    role = words(service)[0]
    in_a_group = name in ("learner-0", "learner-1")
    assert list(service["networks"]) == ["training", *["learners"] * in_a_group]
    assert "ports" not in service and "network_mode" not in service
    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
    mounted = {volume.split(":")[0] for volume in service["volumes"]}
    expected = {f"{role}-credentials"} | ({"runs"} if role == "learner" else set())
    assert mounted == expected
    assert given_to(name)["credentials"] == f"/credentials/{role}"
    assert service["restart"].startswith("on-failure")


def test_only_tensorboard_is_published_and_only_on_this_machine():
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert set(published) == {"tensorboard"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert "training" not in SERVICES["tensorboard"]["networks"]
    assert compose()["networks"]["training"]["internal"] is True
    assert compose()["networks"]["learners"]["internal"] is True
