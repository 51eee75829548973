"""The command line: what is accepted, what is refused, and what --help says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given, command_line
from impala_tf.config.other_names import OTHER_NAMES
from tests.helpers.flags import DEFAULTS, TYPES
from tests.helpers.runs import PROJECT

FULL = Path("/dev/full")
# Anything that a shell can pass on, with many characters that are special on a command line.
TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("-=, '\"\\$\t"), max_size=20
)
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(1, 65_535),
    float: st.floats(min_value=1e-300, max_value=1.0),
    str: TEXT,
}
# Flags that do not accept every value of their type.
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "agent_name": st.sampled_from([None, *configs.AGENTS]),
    "learner_hosts": st.sampled_from(["", "a:1", "a:1,[::1]:2"]),
    "env": st.sampled_from([(), (), ("A=1",), ("A=b=c d", "B=")]),
    "secret": st.sampled_from([(), (), ("C",), ("C", "D")]),
    "join": st.just(False),  # asks the environment, and becomes other flags
    "tmux_sess": st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,9}", fullmatch=True),
}


def values(name: str) -> st.SearchStrategy[Any]:
    """Returns values of a flag, by its type."""
    return SPECIAL[name] if name in SPECIAL else of_type(TYPES[name])


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(choices)
    if choices:  # X | None; users type None as the text "None"
        return st.none() | of_type(choices[0]).filter(lambda value: value not in ("None", "auto"))
    return OF_TYPE[hint]


# --config is read by the first process; the others get what it says. Those of engines are for the
# machine that submits.
FLAGS = {name: values(name) for name in DEFAULTS if name not in ("config", *configs.ENGINE_FLAGS)}


# Most sets of flags contradict themselves somewhere, and are left out.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(chosen=st.fixed_dictionaries({}, optional=FLAGS))
def test_a_config_survives_the_command_line(chosen: dict[str, Any]) -> None:
    """A run passes its config to every process as flags."""
    flags = Given(chosen)
    assume(not configs.problems(flags))
    assert command_line.parse(configs.to_flags(flags)).everything() == flags.everything()


def test_defaults_are_left_out_of_the_flags() -> None:
    """So that command lines stay readable, for example in `ps`."""
    assert configs.to_flags(Given.of(Config())) == []
    assert command_line.parse([]) == Given()
    flags = Given({"seed": 3, "video": True, "terminal_on_life_loss": False})
    assert configs.to_flags(flags) == ["--seed=3", "--no_terminal_on_life_loss", "--video"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--seed", "7"], {"seed": 7}),
        (["--seed=7"], {"seed": 7}),
        (["--batch-size=4"], {"batch_size": 4}),
        (["--seed=1", "--seed=2"], {"seed": 2}),
        (["--learning_rate=1e-3"], {"learning_rate": 0.001}),
        (["--total_environment_frames=1e6"], {"total_environment_frames": 1_000_000}),
        (["--total_environment_frames=2.5E+7"], {"total_environment_frames": 25_000_000}),
        (["--video_every=2_000_000", "--seed=0e0"], {"video_every": 2_000_000, "seed": 0}),
        (["--video", "--no_video"], {"video": False}),
        (
            ["--job_name=learner", "--learner_hosts=a:1,b:2"],
            {"job_name": "learner", "learner_hosts": "a:1,b:2"},
        ),
        (["--logdir=a", "--logdir=b"], {"logdir": "b"}),
        (
            ["--workers_csv_path=w", "--env=A=1", "--env", "B=2,3 4=5", "--secret=C"],
            {"workers_csv_path": "w", "env": ("A=1", "B=2,3 4=5"), "secret": ("C",)},
        ),
        (["--mode=report", "--logdir=a", "--logdir", "b,c"], {"mode": "report", "logdir": "a,b,c"}),
    ],
)
def test_flags_can_be_typed_in_the_usual_ways(
    arguments: list[str], expected: dict[str, Any]
) -> None:
    assert command_line.parse(arguments) == Given().replace(**expected)


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
                "--num_action: no such flag; did you mean --num_action_repeats?",
            ],
        ),
        (["--xyzzy=1"], ["--xyzzy: no such flag (see --help_all)"]),
        (["-seed=1"], ["-seed: no such flag; did you mean --seed?"]),
        (["train"], ["train: no such flag; did you mean --mode=train?"]),
        (["pong"], ["pong: no such flag; flags begin with --: --level_name=pong"]),
        (
            ["--observation_norm=none"],
            ["--observation_norm: no such flag; did you mean --observation_normalization?"],
        ),
        (["--video=yes"], ["--video=yes: takes no value; give --video or --no_video"]),
        (
            ["--no_video=1", "--seed=3"],
            ["--no_video=1: takes no value; give --video or --no_video"],
        ),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest_one(
    arguments: list[str], problems: list[str]
) -> None:
    """Otherwise a typo would train for hours with a default."""
    with pytest.raises(ConfigError) as caught:
        command_line.parse(arguments)
    assert caught.value.problems == problems


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("--level Pong", "did you mean --level_name?"),
        ("--env_id=Pong", "did you mean --level_name?"),
        ("--env-id=Pong", "did you mean --level_name?"),
        ("--lr=1", "did you mean --learning_rate?"),
        ("--gamma=0.9", "did you mean --discounting?"),
        ("--num_envs=8", "give --envs_per_actor, and --num_actors for how many actors there are"),
        ("--num_workers=8", "did you mean --num_actors?"),
        (
            "--total_timesteps=1000",
            "give --total_environment_frames, which counts frames, not agent steps",
        ),
        ("--resume", "a run resumes by itself if its --logdir holds a checkpoint"),
    ],
)
def test_the_names_of_other_libraries_are_answered_with_ours(arguments: str, hint: str) -> None:
    words = arguments.split()
    with pytest.raises(ConfigError) as caught:
        command_line.parse(words)
    assert caught.value.problems == [f"{words[0].partition('=')[0]}: no such flag; {hint}"]


def test_every_other_name_stands_for_flags_that_exist() -> None:
    for name, answer in OTHER_NAMES.items():
        assert name not in DEFAULTS
        for flag in re.findall(r"--(\w+)", answer):
            assert flag in DEFAULTS, name


def test_the_flags_that_were_given_are_known() -> None:
    """One that is given with its default is told apart from one that is left out."""
    words = ["--seed", "1", "--no_video", "--batch-size=4", "--no-detach", "--logdir=a=b"]
    given = {"seed": 1, "video": False, "batch_size": 4, "detach": False, "logdir": "a=b"}
    assert command_line.parse(words).flags == given


def test_a_flag_may_ask_for_its_default() -> None:
    """Scripts pass on what they were told, and that may be nothing."""
    words = ["--agent_name=auto", "--batch_size=None", "--algorithm", "auto", "--precision=auto"]
    nothing = dict.fromkeys(("agent_name", "batch_size", "algorithm"))
    assert command_line.parse(words).flags == {**nothing, "precision": "auto"}
    assert command_line.parse(["--logdir=auto"])["logdir"] == "auto"
    with pytest.raises(ConfigError, match="^--seed=auto: must be a whole number$"):
        command_line.parse(["--seed=auto"])


@pytest.mark.parametrize(
    ("argument", "flag", "says"),
    [
        ("--batch_size=many", "--batch_size=many: must be a whole number", ""),
        ("--batch_size=1.5", "--batch_size=1.5: must be a whole number", ""),
        ("--num_actors=2.0", "--num_actors=2.0: must be a whole number", ""),
        ("--seed=1.55e1", "--seed=1.55e1: must be a whole number", ""),
        ("--seed=1e-1", "--seed=1e-1: must be a whole number", ""),
        ("--seed=1e999999999", "--seed=1e999999999: must be a whole number", ""),
        ("--total_environment_frames=5M", "=5M: must be a whole number", ""),
        ("--learning_rate=abc", "--learning_rate=abc: must be a number", ""),
        ("--num_actors=x", "--num_actors=x: must be a whole number", ""),
        ("--decay=0,9", "--decay=0,9: must be a number", ""),
        ("--mode=play", "--mode=play: must be one of train, test, report,", "benchmark"),
        ("--job_name=boss", "--job_name=boss: must be one of learner, actor", ""),
        ("--reward_clipping=some", "--reward_clipping=some: must be one of abs_one", ""),
        ("--batch_size", "--batch_size: needs a value", ""),
        ("--video", "--video: films a trained agent", "--mode=test"),
        ("--batch_size=0", "--batch_size", "greater than 0"),
        ("--learning_rate=nan", "--learning_rate=nan: must be a number", ""),
        ("--agent_name=Res", "--agent_name", "ResNetAgent"),
        ("--job_name=actor", "--job_name", "--learner_hosts"),
        ("--mode=report", "--mode", "--logdir"),
    ],
)
def test_a_wrong_value_gives_one_line(argument: str, flag: str, says: str) -> None:
    """It names the flag and the problem. No traceback, no box with the usage."""
    with pytest.raises(ConfigError) as caught:
        command_line.parse([argument])
    (line,) = caught.value.problems
    assert flag in line and says in line
    assert "\n" not in line and not set("│╭╮╰╯") & set(line)


def test_the_version_is_that_of_the_project_and_tensorflow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        command_line.parse(["--version"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert re.fullmatch(r"impala_tf \d\S+, TensorFlow 2\S+, Python 3\S+\n", printed)


def test_every_problem_is_one_line_on_standard_error() -> None:
    """With exit status 2, which scripts can tell from a failure during the run."""
    done = subprocess.run(
        [sys.executable, "run_experiment.py", "--batch_size=0", "--decay=2"],
        cwd=PROJECT,
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


def test_help_that_cannot_be_written_is_one_line() -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "run_experiment.py", "--help_all"],
            cwd=PROJECT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    problem = "run_experiment.py: cannot write the output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, problem)


def test_a_wrong_value_is_named_without_utf8() -> None:
    done = subprocess.run(
        [sys.executable, "run_experiment.py", "--batch_size=many"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 2
    assert done.stderr == "run_experiment.py: --batch_size=many: must be a whole number\n"
