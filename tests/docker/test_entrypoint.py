"""What a container's processes are given, without containers: commands, credentials, packages."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from impala_tf import config as configs
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


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "name a role: learner, actor, join or credentials"),
        (["learner", "--learner_hosts=l:1"], "--logdir: name a folder on a volume"),
        (["actor", "--learner_hosts=l:1", "--levle_name=x"], "--levle_name: no such flag"),
    ],
)
def test_unusable_arguments_give_one_line(arguments, problem, capsys):
    assert entrypoint.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["learner/learner.key", "actor/actor.pem"])
def test_each_role_gets_its_own_credentials_and_unusable_ones_are_replaced_for_both(tmp_path, name):
    learner, actor = tmp_path / "learner", tmp_path / "actor"
    assert credentials.ensure(learner, actor)
    assert not credentials.ensure(learner, actor)
    (tmp_path / name).unlink()
    assert credentials.ensure(learner, actor)
    assert (learner / "ca.pem").read_bytes() == (actor / "ca.pem").read_bytes()
    assert names(learner) == sorted(certificates.LEARNER_FILES)
    assert names(actor) == sorted(certificates.ACTOR_FILES)
    for folder in (learner, actor):
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
