"""TF_CONFIG: a scheduler describes a process with it. What is unusable gives one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from impala_tf.config import ConfigError, Given, command_line

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
