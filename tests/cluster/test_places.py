"""--join: each engine's variables give a node its role. What is unusable gives one line."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from impala_tf.cluster.engines import places
from impala_tf.config import ConfigError, Given, command_line
from impala_tf.config.limits import checked

SKYPILOT = {"SKYPILOT_NODE_RANK": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3"}
KUBERNETES = {"JOB_COMPLETION_INDEX": "3", "HOSTNAME": "pong-3"}
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n03",
    "SLURM_JOB_NODELIST": "n[01-03]",
}  # fmt: skip
HETEROGENEOUS = {
    **SLURM, "SLURM_HET_SIZE": "2", "SLURMD_NODENAME": "c2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "g[1-2]", "SLURM_JOB_NODELIST_HET_GROUP_1": "c[1-3]",
}  # fmt: skip
ENGINES = ("SKYPILOT_", "JOB_COMPLETION", "SLURM", "TF_CONFIG")


def parse(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], *arguments: str) -> Given:
    for name in [name for name in os.environ if name.startswith(ENGINES)]:
        monkeypatch.delenv(name)  # the tests may run in a job themselves
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    listed = {"n[01-03]": ["n01", "n02", "n03"], "n03": ["n03"], "g[1-2]": ["g1", "g2"],
              "c[1-3]": ["c1", "c2", "c3"]}  # fmt: skip
    monkeypatch.setattr(places, "_slurm_hosts", lambda nodelist: listed[nodelist])
    given = command_line.parse(["--join", *arguments])
    return checked(places.applied(given, os.environ))


def role(given: Given) -> tuple[str, int, str, int]:
    nodes = len(given["actor_hosts"].split(",")) if given["actor_hosts"] else 0
    return given["job_name"], given["task"], given["learner_hosts"], nodes


@pytest.mark.parametrize(
    ("variables", "arguments", "expected"),
    [
        (SKYPILOT, ["--num_learners=2"], ("actor", 0, "10.0.0.1:8001,10.0.0.2:8001", 1)),
        (SLURM, [], ("actor", 1, "n01:20014", 2)),
        (HETEROGENEOUS, [], ("actor", 1, "g1:20014,g2:20014", 3)),
        ({**HETEROGENEOUS, "SLURMD_NODENAME": "g2"}, [], ("learner", 1, "g1:20014,g2:20014", 3)),
        ({**SLURM, **SKYPILOT}, [], ("actor", 1, "10.0.0.1:8001", 2)),
        ({}, ["--job_name=actor", "--task=5", "--learner_hosts=a:1"], ("actor", 5, "a:1", 0)),
        (KUBERNETES, ["--job_name=actor", "--learner_hosts=a:1"], ("actor", 3, "a:1", 0)),
    ],
)
def test_a_node_finds_its_role_and_the_learners(
    monkeypatch: pytest.MonkeyPatch,
    variables: Mapping[str, str],
    arguments: list[str],
    expected: object,
) -> None:
    assert role(parse(monkeypatch, variables, *arguments)) == expected


def test_a_node_that_is_alone_trains_as_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    given = parse(monkeypatch, {**SLURM, "SLURM_JOB_NODELIST": "n03"}, "--seed=2")
    assert (given["join"], given["job_name"], given["seed"]) == (False, "", 2)


@pytest.mark.parametrize(
    ("variables", "arguments", "line"),
    [
        ({}, [], "--join: no variable says which node this is"),
        (SKYPILOT, ["--num_learners=3"], "--num_learners=3: the job has 3 node"),
        ({**SLURM, "SLURM_STEP_ID": ""}, [], "--join: .* with srun"),
        ({**SLURM, "SLURMD_NODENAME": "n09"}, [], "SLURMD_NODENAME=n09: must be once in"),
        (SLURM, ["--mode=test", "--logdir=x"], "--join: trains"),
        (KUBERNETES, [], "--join: no variable says which node this is"),
    ],
)
def test_what_is_unusable_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], arguments: list[str], line: str
) -> None:
    with pytest.raises(ConfigError, match=line):
        parse(monkeypatch, variables, *arguments)
