"""examples/skypilot.yaml can be read, and its commands work on a node. No cloud is needed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from impala_tf.cluster.engines import places
from impala_tf.config import Given, command_line
from impala_tf.machine import certificates
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


def test_each_node_finds_its_part_and_the_learner() -> None:
    nodes = [given_to_node(number) for number in range(TASK["num_nodes"])]
    parts = [(node["job_name"], node["task"]) for node in nodes]
    assert parts == [("learner", 0), ("actor", 0), ("actor", 1), ("actor", 2)]
    assert {node["learner_hosts"] for node in nodes} == {"10.0.0.0:8001"}
    assert {node["mirror"] for node in nodes} == {"s3://my-bucket/pong"}


def test_bash_can_read_what_it_runs_and_it_installs_what_is_there() -> None:
    for part in ("setup", "run"):
        subprocess.run(["bash", "-n"], input=TASK[part], text=True, check=True)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert "-e '.[learner,mirror]'" in TASK["setup"]
    assert {"learner", "mirror"} <= project["optional-dependencies"].keys()
    assert (PROJECT / "impala_tf" / "constraints.txt").is_file()


def test_the_certificates_that_it_copies_are_made_by_the_command_in_the_docs(
    tmp_path: Path,
) -> None:
    """A node is told its role only when it runs, so each gets the files of both."""
    ((there, here),) = TASK["file_mounts"].items()
    (name,) = (line for line in TASK["run"].splitlines() if line.startswith("credentials="))
    assert name == f'credentials="$HOME"{there.removeprefix("~")}'
    command = f"docker/credentials.py {here} {here}"
    assert command in (PROJECT / "docs" / "engines.md").read_text()
    script, *folders = command.split()
    subprocess.run([sys.executable, PROJECT / script, *folders], cwd=tmp_path, check=True)
    made = {path.name for path in (tmp_path / here).iterdir()}
    assert made == {*certificates.LEARNER_FILES, *certificates.ACTOR_FILES}
