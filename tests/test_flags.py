"""The command line: what is parsed, what is refused in a line, and what --help says."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, command_line
from impala_tf.config import flags as flags_module
from tests.test_config import DEFAULTS, TYPES

REPOSITORY = Path(__file__).parents[1]

# Anything that a shell can hand over, with what is special to a command line in it.
TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("-=, '\"\\$\t"), max_size=20
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(1, 65_535),
    float: st.floats(min_value=1e-300, max_value=1.0),
    str: TEXT,
}
# Flags that do not take whatever is of their type.
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "agent_name": st.sampled_from(["auto", *configs.AGENTS]),
    "learner_hosts": st.sampled_from(["", "a:1", "a:1,[::1]:2"]),
    "tmux_sess": st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,9}", fullmatch=True),
}


def values(name: str) -> st.SearchStrategy[Any]:
    """Values of a flag, by its type."""
    if name in SPECIAL:
        return SPECIAL[name]
    hint = TYPES[name]
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(choices)
    if choices:  # X | None; the text "None" is how None is typed
        given = OF_TYPE[choices[0]].filter(lambda value: value != "None")
        return st.none() | given
    return OF_TYPE[hint]


@settings(max_examples=60, deadline=None)
@given(chosen=st.fixed_dictionaries({}, optional={name: values(name) for name in DEFAULTS}))
def test_flags_give_their_config_back(chosen: dict[str, Any]) -> None:
    """The starter hands its config to every process as flags: what is lost there is lost."""
    config = configs.replace(Config(), **chosen)
    assume(not configs.problems(config))
    assert command_line.parse(configs.to_flags(config)) == config


def test_a_default_needs_no_flag() -> None:
    """Command lines stay readable, in `ps` as in "to go on"."""
    assert configs.to_flags(Config()) == []
    assert command_line.parse([]) == Config()
    config = configs.replace(Config(), seed=3, video=True, terminal_on_life_loss=False)
    assert configs.to_flags(config) == ["--seed=3", "--no_terminal_on_life_loss", "--video"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seed", "7"], {"seed": 7}),
        (["--seed=7"], {"seed": 7}),
        (["--batch-size=4"], {"batch_size": 4}),
        (["--seed=1", "--seed=2"], {"seed": 2}),
        (["--learning_rate=1e-3"], {"learning_rate": 0.001}),
        (["--video", "--no_video"], {"video": False}),
        (["--learner_hosts=a:1,b:2"], {"learner_hosts": "a:1,b:2"}),
    ],
)
def test_usual_ways_to_type_a_flag(arguments: list[str], expected: dict[str, Any]) -> None:
    assert command_line.parse(arguments) == configs.replace(Config(), **expected)


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (
            ["--level_nmae=PongNoFrameskip-v4"],
            ["--level_nmae: no such flag; did you mean --level_name?"],
        ),
        (
            ["--batch_sze", "3", "--num_action=2"],
            [
                "--batch_sze: no such flag; did you mean --batch_size?",
                "3: no such flag (see --help)",
                "--num_action: no such flag; did you mean --num_actors?",
            ],
        ),
        (["--xyzzy=1"], ["--xyzzy: no such flag (see --help)"]),
        (["-seed=1"], ["-seed: no such flag; did you mean --seed?"]),
        (["train"], ["train: no such flag (see --help)"]),
        (["--video=yes"], ["--video=yes: takes no value; give --video or --no_video"]),
        (
            ["--no_video=1", "--seed=3"],
            ["--no_video=1: takes no value; give --video or --no_video"],
        ),
    ],
)
def test_what_is_no_flag_is_told_with_what_was_meant(
    arguments: list[str], problems: list[str]
) -> None:
    """A typo that is passed over trains for hours with a default."""
    with pytest.raises(ConfigError) as caught:
        command_line.parse(arguments)
    assert caught.value.problems == problems


@pytest.mark.parametrize(
    ("argument", "flag", "says"),
    [
        ("--batch_size=many", "--batch_size", "'many'"),
        ("--batch_size=1.5", "--batch_size", "'1.5'"),
        ("--learning_rate=fast", "--learning_rate", "'fast'"),
        ("--num_actors=x", "--num_actors", "'x'"),
        ("--decay=0,9", "--decay", "'0,9'"),
        ("--mode=play", "--mode", "'train', 'test'"),
        ("--reward_clipping=some", "--reward_clipping", "'abs_one'"),
        ("--batch_size", "--batch_size", "Missing value"),
        ("--batch_size=0", "--batch_size", "greater than 0"),
        ("--learning_rate=nan", "--learning_rate", "number"),
        ("--agent_name=Res", "--agent_name", "ResNetAgent"),
        ("--job_name=actor", "--job_name", "--learner_hosts"),
    ],
)
def test_a_wrong_value_is_told_in_a_line(argument: str, flag: str, says: str) -> None:
    """Which flag, and what is wrong with it: not a traceback, not a box of usage."""
    with pytest.raises(ConfigError) as caught:
        command_line.parse([argument])
    (line,) = caught.value.problems
    assert flag in line and says in line
    assert "\n" not in line and not set("│╭╮╰╯") & set(line)


def test_the_terminal_is_left_as_it_was(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The lines are read unwrapped; the width that this takes must not stay behind."""
    for columns in (None, "77"):
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", columns)
        with pytest.raises(ConfigError) as caught:
            command_line.parse(["--reward_clipping=" + "x" * 300])
        assert "x" * 300 in caught.value.problems[0]
        assert os.environ.get("COLUMNS") == columns
    assert capfd.readouterr() == ("", "")


def documented() -> dict[str, str]:
    """The string below each field in config/flags.py, by flag, in one line."""
    texts = {}
    for node in ast.parse(Path(flags_module.__file__).read_text()).body:
        if not isinstance(node, ast.ClassDef) or node.name == "Config":
            continue
        for field, below in itertools.pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
                texts[field.target.id] = " ".join(str(below.value.value).split())
    return texts


def test_every_flag_has_a_help_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag without one is a riddle; --help is a success and shows that text."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as end:
        command_line.parse(["--seed=1", "--help"])
    assert end.value.code == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    help_text = " ".join(" ".join(lines).split())
    texts = documented()
    for name, default in DEFAULTS.items():
        assert len(texts[name].split()) >= 2
        shown = default if not isinstance(default, str) else default or "''"
        assert re.search(
            rf"--{name}[ ,].{{0,90}} {re.escape(texts[name])} \(default: {re.escape(str(shown))}",
            help_text,
        ), name


def test_every_problem_is_a_line_on_standard_error() -> None:
    """Scripts tell unusable flags from failures at work by the exit status 2."""
    done = subprocess.run(
        [sys.executable, "run_experiment.py", "--batch_size=0", "--decay=2"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "run_experiment.py: --batch_size=0: must be greater than 0",
        "run_experiment.py: --decay=2.0: must be between 0 and 1",
    ]
