"""The words of the launcher's commands: flags may stand anywhere among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from impala_tf.config import ConfigError
from impala_tf.frontend.main import main, parser


def parsed(*words: str) -> dict[str, Any]:
    return vars(parser("frontend").parse_args(words))


@pytest.mark.parametrize(
    "words",
    [
        ("supervisor", "HOST", "-f", "--logdir=x"),
        ("supervisor", "-f", "HOST", "--logdir=x"),
        ("-f", "supervisor", "--logdir", "x", "HOST"),
        ("--logdir=x", "--follow", "supervisor", "HOST"),
    ],
)
def test_a_flag_may_stand_between_two_names(words: tuple[str, ...]) -> None:
    """People add -f to the command before, where the cursor is."""
    found = parsed("logs", *words)
    assert (found["name"], found["host"]) == ("supervisor", "HOST")
    assert (found["follow"], found["logdir"], found["word"]) == (True, "x", "logs")


def test_names_on_both_sides_of_a_flag_count() -> None:
    found = parsed("status", "actor-0", "--problems", "actor-1", "-f")
    assert (found["targets"], found["problems"], found["follow"]) == (["actor-0", "actor-1"], 1, 1)
    assert parsed("status")["targets"] == []
    assert parsed("stop")["target"] is None


@pytest.mark.parametrize(
    ("word", "flag", "name"),
    [
        ("fetch", "--to=~/pong", "to"),
        ("fetch", "--logdir=~/runs/a", "logdir"),
        ("status", "--logdir=~", "logdir"),
    ],
)
def test_a_tilde_that_the_shell_leaves_is_refused(
    word: str, flag: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A run was fetched to a folder named ~ in the current one."""
    monkeypatch.chdir(tmp_path)
    assert main([word, flag]) == 2
    assert capsys.readouterr().err == (
        f"{flag}: shells leave ~ as it is there; write --{name}=$HOME/...\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--logdir=x"])
def test_setup_does_not_take_what_only_doctor_uses(flag: str) -> None:
    assert parsed("doctor", "--workers_csv_path=x", flag)
    with pytest.raises(ConfigError, match=f"unrecognized arguments: {flag}"):
        parsed("setup", "--workers_csv_path=x", flag)


@pytest.mark.parametrize(
    "words",
    [
        *("add", "fetch", "status", "stop", "watch"),
        *("doctor --workers_csv_path=x", "setup --workers_csv_path=x"),
        *("logs learner-0", "restart learner-0", "revoke HOST"),
    ],
)
def test_new_machines_may_be_trusted_by_whatever_logs_in(words: str) -> None:
    """A run may be launched on one machine, and be looked after from another."""
    assert not parsed(*words.split())["accept_new_host_keys"]
    name, *rest = words.split()
    assert parsed(name, "--accept_new_host_keys", *rest)["accept_new_host_keys"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["logs"], "the following arguments are required: NAME; see frontend logs --help"),
        (["logs", "a", "b", "c"], "unrecognized arguments: c; see frontend --help"),
        (["status", "--probelms"], "unrecognized arguments: --probelms; see frontend --help"),
        (["stop", "--timeout_s=x"], "argument --timeout_s: invalid float value: 'x'; see"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*words)
    (line,) = caught.value.problems
    assert line.startswith(problem)
