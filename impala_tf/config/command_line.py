"""Command line -> Config: tyro builds the parser from the dataclasses in `flags`."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
from collections.abc import Iterator, Sequence

import tyro

from impala_tf.config import presets, tf_config
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import flat_items, replace
from impala_tf.config.flags import Config
from impala_tf.config.limits import problems

PROBLEM_PREFIX = "run_experiment.py: "
_DESCRIPTION = (
    "IMPALA: trains on this machine or on a cluster, evaluates a trained agent, or compares runs."
)


def parse(arguments: Sequence[str]) -> Config:
    """Returns the config that the flags describe; `--help` prints help and the presets.

    If the flags give no role, the environment variable TF_CONFIG may (see `tf_config`).

    Raises:
      ConfigError: an unknown flag, a value of the wrong type or out of range, or a bad TF_CONFIG.
    """
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
    errors = io.StringIO()
    try:
        with contextlib.nullcontext() if wants_help else _captured(errors):
            config, unknown = tyro.cli(
                Config,
                prog="run_experiment.py",
                description=_DESCRIPTION,
                args=list(arguments),
                return_unknown_args=True,
                use_underscores=True,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.UseAppendAction),
            )
    except SystemExit as end:
        if not end.code:
            print(f"\nWhat the presets hold:\n\n{presets.table()}")
            raise
        raise ConfigError(_one_line(errors.getvalue())) from None
    if unknown:
        raise ConfigError([_problem(part, arguments) for part in unknown])
    config = tf_config.applied(config, arguments, os.environ)
    if config.run.mode == "report" and config.run.logdir is not None:
        config = replace(config, logdir=",".join(_values("logdir", arguments)))
    if found := problems(config):
        raise ConfigError(found)
    return config


def _values(flag: str, arguments: Sequence[str]) -> list[str]:
    """Returns every value that the command line gives a flag; tyro returns only the last one."""
    following = [*arguments[1:], ""]
    values = []
    for word, following_word in zip(arguments, following, strict=True):
        name, equals, value = word.partition("=")
        if name == f"--{flag}":
            values.append(value if equals else following_word)
    return values


def _problem(part: str, arguments: Sequence[str]) -> str:
    """Returns what is wrong with a part of the command line, and which flag may be meant."""
    # From --video=yes, tyro takes --video and reports "yes" as unknown.
    argument = next((whole for whole in arguments if whole.endswith(f"={part}")), part)
    name = argument.partition("=")[0]
    defaults = dict(flat_items(Config()))
    switch = name.removeprefix("--").removeprefix("no_")
    if isinstance(defaults.get(switch), bool):
        return f"{argument}: takes no value; give --{switch} or --no_{switch}"
    near = difflib.get_close_matches(name, [f"--{flag}" for flag in defaults], n=1)
    return f"{name}: no such flag" + (f"; did you mean {near[0]}?" if near else " (see --help)")


@contextlib.contextmanager
def _captured(errors: io.StringIO) -> Iterator[None]:
    """Catches tyro's error message without line breaks: it draws a box as wide as the terminal."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        with contextlib.redirect_stderr(errors):
            yield
    finally:
        del os.environ["COLUMNS"]
        if columns is not None:
            os.environ["COLUMNS"] = columns


def _one_line(box: str) -> str:
    """Returns the first line of the text in tyro's box, which has lines of - without UTF-8."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()[1:]]
    return f"{next((line for line in lines if line.strip('-')), 'invalid flags')} (see --help)"


def fail(error: ConfigError) -> int:
    """Prints one line per problem to standard error; returns the exit status of invalid input."""
    for problem in error.problems:
        print(f"{PROBLEM_PREFIX}{problem}", file=sys.stderr)
    return 2
