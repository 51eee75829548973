"""The Compose file, read without containers."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from impala_tf import config as configs
from impala_tf.config import command_line
from tests.helpers.runs import PROJECT

DOCKER = PROJECT / "docker"


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


def given_to(name: str) -> configs.Given:
    role, *given = shlex.split(PROCESSES[name]["command"])
    return command_line.parse([f"--job_name={role}", *["--join"] * (role == "learner"), *given])


@pytest.mark.parametrize("profile", ["one-learner", "two-learners"])
def test_a_profile_is_one_run_in_which_every_learner_has_actors(profile):
    members = {n: given_to(n) for n, s in PROCESSES.items() if s["profiles"] == [profile]}
    digests = {configs.wire_digest(configs.resolve(each, "atari")) for each in members.values()}
    assert len(digests) == 1
    assert {each["level_name"] for each in members.values()} == {environment()["LEVEL_NAME"]}
    learners = [name for name in members if name.startswith("learner")]
    hosts = {each["learner_hosts"] for name, each in members.items() if name not in learners}
    assert hosts == {f"{name}:8001" for name in learners}
    for name in learners:
        assert configs.split(members[name]["learner_hosts"])[members[name]["task"]] in hosts


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_are_isolated_and_see_only_their_own_credentials(name):
    service, role = PROCESSES[name], name.partition("-")[0]
    in_a_group = name in ("learner-0", "learner-1")
    assert list(service["networks"]) == ["training", *["learners"] * in_a_group]
    assert "ports" not in service and "network_mode" not in service
    assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
    mounted = {volume.split(":")[0] for volume in service["volumes"]}
    assert mounted == {f"{role}-credentials"} | ({"runs"} if role == "learner" else set())
    assert given_to(name)["credentials"] == f"/credentials/{role}"
    assert service["restart"].startswith("on-failure")
    # A level that forks or leaks does not harm the machine.
    assert 0 < service["pids_limit"] < 10_000
    assert re.fullmatch(r"\d+g", service["mem_limit"])


def test_only_tensorboard_is_published_and_only_on_this_machine():
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert set(published) == {"tensorboard"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert "training" not in SERVICES["tensorboard"]["networks"]
    assert all(compose()["networks"][name]["internal"] for name in ("training", "learners"))
