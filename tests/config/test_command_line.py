"""The command line: what is accepted, what is refused, and what --help says."""

from __future__ import annotations

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
from impala_tf.config import ConfigError, Given, command_line
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


def test_the_names_of_flags_in_other_libraries_name_ours() -> None:
    for name, ours in OTHER_NAMES.items():
        with pytest.raises(ConfigError) as caught:
            command_line.parse([f"--{name.replace('_', '-')}=1"])
        assert f"--{ours}" in str(caught.value)
        assert ours.partition("=")[0] in DEFAULTS


def test_a_command_takes_the_folder_of_a_run_without_its_flag() -> None:
    assert command_line.parse(["--mode=test", "a=b", "--video"])["logdir"] == "a=b"
    assert command_line.parse(["--mode=report", "--seed", "2", "a", "b"])["logdir"] == "a,b"


def test_a_flag_may_ask_for_its_default() -> None:
    """Scripts pass on what they were told, and that may be nothing."""
    words = ["--agent_name=auto", "--batch_size=None", "--algorithm", "auto", "--precision=auto"]
    nothing = dict.fromkeys(("agent_name", "batch_size", "algorithm"))
    assert command_line.parse(words).flags == {**nothing, "precision": "auto"}
    assert command_line.parse(["--logdir=auto"])["logdir"] == "auto"
    with pytest.raises(ConfigError, match="^--seed=auto: must be a whole number$"):
        command_line.parse(["--seed=auto"])


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
