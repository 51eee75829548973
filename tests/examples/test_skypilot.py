"""examples/skypilot.yaml can be read, and its commands work on a node. No cloud is needed."""

from __future__ import annotations

import os
import shlex
import subprocess
from typing import Any

import pytest
import yaml

from impala_tf.cluster.engines import places
from impala_tf.config import Given, command_line
from tests.helpers.runs import PROJECT

TASK: dict[str, Any] = yaml.safe_load((PROJECT / "examples" / "skypilot.yaml").read_text())


def given_to_node(number: int) -> Given:
    """The flags of a node, as its shell reads them there."""
    program, command, *words = shlex.split(TASK["run"].splitlines()[-1])
    assert (program, command) == (".venv/bin/impala", "train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKYPILOT_NODE_RANK", str(number))
        nodes = range(TASK["num_nodes"])
        patch.setenv("SKYPILOT_NODE_IPS", "\n".join(f"10.0.0.{node}" for node in nodes))
        patch.delenv("TF_CONFIG", raising=False)
        return places.applied(command_line.parse(words), os.environ)


def test_bash_reads_it_and_each_node_finds_its_part_and_the_learner() -> None:
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=TASK[part], text=True, check=True)
    nodes = [given_to_node(number) for number in range(TASK["num_nodes"])]
    parts = [(node["job_name"], node["task"]) for node in nodes]
    assert parts == [("learner", 0), ("actor", 0), ("actor", 1), ("actor", 2)]
    assert {node["learner_hosts"] for node in nodes} == {"10.0.0.0:8001"}
    assert {node["mirror"] for node in nodes} == {"s3://my-bucket/pong"}
