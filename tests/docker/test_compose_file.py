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


def words(service: dict) -> list[str]:
    return shlex.split(service["command"])


def given_to(name: str) -> configs.Given:
    role, *given = words(PROCESSES[name])
    return command_line.parse([f"--job_name={role}", *["--join"] * (role == "learner"), *given])


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


@pytest.mark.parametrize("name", SERVICES)
def test_a_level_that_forks_or_leaks_does_not_harm_the_machine(name):
    assert 0 < SERVICES[name]["pids_limit"] < 10_000
    assert re.fullmatch(r"\d+g", SERVICES[name]["mem_limit"])


def test_only_tensorboard_is_published_and_only_on_this_machine():
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert set(published) == {"tensorboard"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert "training" not in SERVICES["tensorboard"]["networks"]
    assert compose()["networks"]["training"]["internal"] is True
    assert compose()["networks"]["learners"]["internal"] is True
