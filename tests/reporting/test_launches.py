"""A report says how large a launched run was: the command beside it is that of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import Given
from impala_tf.frontend import record
from impala_tf.frontend.inventory import Row
from impala_tf.frontend.plan import LocalNode, make_plan
from impala_tf.reporting import documents, facts, runs, settings
from impala_tf.reporting.summary import Exhibit, summarize_level
from tests.helpers.logdirs import write_run

HOSTS = "10.9.9.1:8001,10.9.9.2:8001"


def named(logdir: Path) -> str:
    """Returns what stands beside the command of the only run."""
    (level,) = settings.group(runs.find(str(logdir)))
    ((name, _),) = facts.commands(level)
    return name.partition("seed 1")[2].strip()


def write_status(path: Path, *hosts: str, begin: int = 0) -> None:
    actors = [{"name": f"actor-{begin + k}", "host": host} for k, host in enumerate(hosts)]
    path.write_text(json.dumps({"state": "done", "actors": actors}))


def launch(logdir: Path) -> None:
    """Writes the record of a launch on five machines."""
    rows = [
        *(Row(2, "learner", f"10.9.9.{number}", 8001) for number in (1, 2)),
        *(Row(9, "actor", f"10.9.9.{number}") for number in (1, 3, 4, 5, 5)),
    ]
    given = Given({"level_name": "CartPole-v1", "envs_per_actor": 8, "logdir": str(logdir)})
    plan = make_plan(given, rows, LocalNode(logdir, "p", logdir, lambda host: False))
    record.save(record.Record("id", 0.0, "w.csv", (), "CartPole-v1", plan), logdir)


def test_a_launch_is_described_by_its_record(tmp_path: Path) -> None:
    launch(write_run(tmp_path / "run", learner_hosts=HOSTS))
    assert named(tmp_path / "run") == "(2 learners and 5 actors on 5 machines)"
    (level,) = settings.group(runs.find(str(tmp_path)))
    found = [summarize_level(level, {level.settings[0]: Exhibit()}, None)]
    for text in (documents.html(found, "", ""), documents.markdown(found, {}, "", "")):
        assert "seed 1 (2 learners and 5 actors on 5 machines)" in text


def test_a_run_that_has_moved_to_one_machine_is_not_its_launch(tmp_path: Path) -> None:
    launch(write_run(tmp_path, learner_hosts="127.0.0.1:4711"))
    write_status(tmp_path / "status.json", "127.0.0.1", "127.0.0.1")
    assert named(tmp_path) == ""


@pytest.mark.parametrize(
    ("flags", "actors", "expected"),
    [
        ({"learner_hosts": "127.0.0.1:4711"}, ["127.0.0.1", "::1"], ""),
        ({}, [], ""),
        (
            {"learner_hosts": "node-1:8001"},
            ["10.9.9.1", "10.9.9.2", "10.9.9.2"],
            "(1 learner and 3 actors at 2 addresses)",
        ),
        (
            {"learner_hosts": "node-1:8001"},
            ["10.9.9.1"],
            "(1 learner and 1 actor at 1 address)",
        ),
        ({"learner_hosts": HOSTS}, ["10.9.9.3"], "(2 learners)"),
    ],
)
def test_without_a_record_the_status_tells_the_actors(
    tmp_path: Path, flags: dict[str, Any], actors: list[str], expected: str
) -> None:
    """Of several learners, each knows its own actors only."""
    write_run(tmp_path, **flags)
    write_status(tmp_path / "status.json", *actors)
    assert named(tmp_path) == expected


def test_the_actors_of_all_learners_count(tmp_path: Path) -> None:
    write_run(tmp_path, learner_hosts=HOSTS)
    write_status(tmp_path / "status.json", "10.9.9.3", "10.9.9.4")
    write_status(tmp_path / "status-1.json", "10.9.9.4", begin=2)
    assert named(tmp_path) == "(2 learners and 3 actors at 2 addresses)"
