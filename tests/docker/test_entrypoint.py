"""What a container's processes are given, without containers: commands, credentials, packages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from impala_tf import config as configs
from impala_tf.cluster import join, requirements
from impala_tf.cluster.engines import places
from impala_tf.config import command_line
from impala_tf.machine import certificates
from tests.helpers.runs import PROJECT

DOCKER = PROJECT / "docker"
sys.path.insert(0, str(DOCKER))

import credentials  # noqa: E402
import entrypoint  # noqa: E402
import health  # noqa: E402


@pytest.fixture(autouse=True)
def work_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(entrypoint, "WORK", tmp_path)
    monkeypatch.delenv("IMPALA_TF_HEARTBEATS", raising=False)
    monkeypatch.setattr(health, "NOTE", tmp_path / "note.json")
    return tmp_path


def note() -> dict[str, str]:
    return json.loads(health.NOTE.read_text())


def flags_of(command: list[str]) -> configs.Given:
    """The flags of a command of run_experiment.py."""
    script = next(n for n, word in enumerate(command) if word.endswith("run_experiment.py"))
    return places.applied(command_line.parse(command[script + 1 :]), os.environ)


def test_replicas_with_the_same_flags_get_different_numbers(monkeypatch):
    tasks = set()
    for name in ("0f3a9c21b7de", "c0ffee5a11ad", "actor-6d4f9-x2x7z"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        commands = [entrypoint.command("actor", ["--learner_hosts=l:1"]) for _ in range(2)]
        assert commands[0] == commands[1]
        tasks.add(flags_of(commands[0])["task"])
    assert len(tasks) == 3
    assert all(0 <= task < 2**31 for task in tasks)


def test_a_learner_is_a_node_that_waits_for_the_others(work_folder, monkeypatch):
    """In a group, learners meet at their names in a network without actors."""
    hosts = "--learner_hosts=learner-0:8001,learner-1:8001"
    logdir = work_folder / "run"
    monkeypatch.setenv(join.GROUP_HOSTS, "learner-0.group,learner-1.group")
    words = [hosts, "--task=1", f"--logdir={logdir}", "--credentials=/c"]
    flags = flags_of(entrypoint.command("learner", words))
    assert (flags["join"], flags["job_name"], flags["task"]) == (True, "learner", 1)
    assert note() == {
        "supervisor": f"{logdir}/processes/node-learner-1.state.json",
        "heartbeats": {},
        "status": f"{logdir}/status-1.json",
        "address": "learner-1:8001",
        "ca": "/c/ca.pem",
        "name": certificates.LEARNER_NAME,
    }
    (process,) = join._processes(flags, logdir, Path("/c"), ("learner-0:8001", "learner-1:8001"))
    own = flags_of(["python", *process.arguments])
    assert own["learner_hosts"] == "learner-0:8001,0.0.0.0:8001"
    group = process.group
    assert group is not None
    assert (group.number, group.is_spread, group.rendezvous_port) == (1, True, 8002)
    assert group.hosts == ("learner-0.group", "learner-1.group")


COMMON = ("--level_name=CartPole-v1", "--learner_hosts=p-learner-0.p:8001", "--logdir=/runs/p",
          "--credentials=/credentials", "--actors_per_node=3")  # fmt: skip


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
        (["join", "--job_name=learner", "--learner_hosts=l:1"], "--logdir: name a folder"),
        (["actor", "--learner_hosts=l:1", "--levle_name=x"], "--levle_name: no such flag"),
        (["no-such-command"], "no-such-command: No such file"),
    ],
)
def test_unusable_arguments_give_one_line(arguments, problem, capsys):
    assert entrypoint.main(arguments) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert problem in said[0]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_learners_and_actors_get_only_their_own_files(tmp_path):
    learner, actor = tmp_path / "learner", tmp_path / "actor"
    assert credentials.main([str(learner), str(actor)]) == 0
    assert names(learner) == sorted(certificates.LEARNER_FILES)
    assert names(actor) == sorted(certificates.ACTOR_FILES)
    for folder in (learner, actor):
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["learner/learner.key", "actor/actor.pem", "actor/ca.pem"])
def test_credentials_are_kept_and_unusable_ones_replaced_for_both(tmp_path, name):
    learner, actor = tmp_path / "learner", tmp_path / "actor"
    assert credentials.ensure(learner, actor)
    assert not credentials.ensure(learner, actor)
    (tmp_path / name).unlink()
    assert credentials.ensure(learner, actor)
    assert (learner / "ca.pem").read_bytes() == (actor / "ca.pem").read_bytes()
    assert names(actor) == sorted(certificates.ACTOR_FILES)


def test_a_folder_that_cannot_be_written_is_reported(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert credentials.main([str(tmp_path / "file" / "x"), str(tmp_path / "actor")]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_an_actor_needs_only_the_packages_of_its_image():
    # {what pip installs: how it is imported}. Others are tools.
    not_installed = {
        "av": "av", "opencv-python-headless": "cv2", "paramiko": "paramiko", "pygame-ce": "pygame",
        "tensorflow": "tensorflow", "dm-sonnet": "sonnet", "tensorboard": "tensorboard",
        "Jinja2": "jinja2", "fsspec": "fsspec", "matplotlib": "matplotlib", "pillow": "PIL",
        "scipy": "scipy",
    }  # fmt: skip
    extra = set(requirements.of_role("learner")) - set(requirements.of_role("actor"))
    assert {requirement.split("==")[0] for requirement in extra} == {*not_installed, "uv"}
    code = (
        "import sys\n"
        f"for name in {[*not_installed.values(), 'impala_tf.cluster']}:\n"
        "    sys.modules[name] = None  # importing it raises ImportError\n"
        "import run_experiment, impala_tf.processes.actor_main\n"
        "from impala_tf.config import command_line\n"
        "from impala_tf.environments import suites\n"
        "from impala_tf.processes import common\n"
        "for name in ('PongNoFrameskip-v4', 'CartPole-v1'):\n"
        "    config, _ = common.resolve(command_line.parse([f'--level_name={name}']))\n"
        "    suites.make(config.environment, suites.spec(config.environment), 2).close()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=DOCKER.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
