"""TF_CONFIG: a scheduler describes a process with it. What is unusable gives one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from impala_tf.config import ConfigError, Given, command_line
from impala_tf.processes.trained_flags import as_exported
from tests.helpers.runs import PROJECT

CLUSTER: dict[str, Any] = {"learner": ["10.0.0.1:8001", "[::1]:8002"], "actor": ["a", "b:1", "c"]}


def parse(monkeypatch: pytest.MonkeyPatch, value: Any, *arguments: str) -> Given:
    text = value if isinstance(value, str) else json.dumps(value)
    monkeypatch.setenv("TF_CONFIG", text)
    return command_line.parse(arguments)


def described(job: Any = "actor", index: Any = 2, **cluster: Any) -> dict[str, Any]:
    return {"cluster": {**CLUSTER, **cluster}, "task": {"type": job, "index": index}}


def role(given: Given) -> tuple[str, int, str, str]:
    return given["job_name"], given["task"], given["learner_hosts"], given["actor_hosts"]


def test_it_gives_the_role_the_task_and_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = "10.0.0.1:8001,[::1]:8002"
    actor = parse(monkeypatch, described(), "--seed=3")
    assert role(actor) == ("actor", 2, learners, "a,b:1,c")
    assert actor["seed"] == 3
    assert role(parse(monkeypatch, described("learner", 1))) == (
        "learner", 1, learners, "a,b:1,c",
    )  # fmt: skip


OF_ANOTHER_PROGRAM = {
    "cluster": {"chief": ["job-0:2222"], "worker": ["job-1:2222"]},
    "task": {"type": "chief", "index": 0},
    "environment": "cloud",
}


@pytest.mark.parametrize("value", ["", "  ", OF_ANOTHER_PROGRAM, {"cluster": {}}])
def test_one_that_is_empty_or_for_another_program_is_ignored(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    assert role(parse(monkeypatch, value)) == ("", 0, "", "")


def test_each_flag_on_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse(monkeypatch, described(), "--task=0", "--learner_hosts=h:1")
    assert role(found) == ("actor", 0, "h:1", "a,b:1,c")
    assert parse(monkeypatch, described(), "--task", "0")["task"] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--job_name=learner", "--learner_hosts=h:1"],
        ["--workers_csv_path=workers.csv"],
        ["--mode=test", "--logdir=run"],
    ],
)
def test_it_is_ignored_if_the_command_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """A process inherits the environment of the process that started it."""
    found = parse(monkeypatch, "{not even JSON", *arguments)
    assert found["task"] == 0
    assert found["job_name"] in ("", "learner")


def test_flags_of_a_stored_agent_are_not_this_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent is played in a job of a scheduler, too."""
    monkeypatch.setenv("TF_CONFIG", "{not even JSON")
    agent = PROJECT / "examples" / "cartpole"
    assert as_exported(Given({"logdir": str(agent), "mode": "test"}), {"level_name": "CartPole-v1"})


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{", "TF_CONFIG: must be "),
        (described("worker"), "TF_CONFIG: must be "),
        (described(learner="h:1"), "TF_CONFIG: must be "),
        (described(actor=["a,b"]), "TF_CONFIG: must be "),
        (described(index=3), "--task=3: --actor_hosts names 3"),
    ],
)
def test_an_unusable_value_gives_one_line(
    monkeypatch: pytest.MonkeyPatch, value: Any, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(monkeypatch, value)
    (line,) = caught.value.problems
    assert line.startswith(problem)
    assert "\n" not in line
