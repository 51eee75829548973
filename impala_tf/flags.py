"""Command line -> Config, by tyro from the dataclasses of `config`."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
from collections.abc import Iterator, Sequence

import tyro

from impala_tf import config as configs
from impala_tf import tf_config
from impala_tf.config import Config, ConfigError

PROBLEM_PREFIX = "run_experiment.py: "
_DESCRIPTION = "IMPALA: trains on this machine or on a cluster, or plays what was trained."


def parse(arguments: Sequence[str]) -> Config:
    """Returns the config that the flags describe; `--help` prints help and exits 0.

    Where they name no role, the environment variable TF_CONFIG may (see `tf_config`).

    Raises:
      ConfigError: an unknown flag, a value of the wrong type or out of range; such a TF_CONFIG.
    """
    helps = any(argument in ("-h", "--help") for argument in arguments)
    complaint = io.StringIO()
    try:
        with contextlib.nullcontext() if helps else _captured(complaint):
            config, left_over = tyro.cli(
                Config,
                prog="run_experiment.py",
                description=_DESCRIPTION,
                args=list(arguments),
                return_unknown_args=True,
                use_underscores=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as end:
        if not end.code:
            raise
        raise ConfigError(_one_line(complaint.getvalue())) from None
    if left_over:
        raise ConfigError([_unusable(part, arguments) for part in left_over])
    config = tf_config.applied(config, arguments, os.environ)
    found = configs.problems(config)
    if found:
        raise ConfigError(found)
    return config


def _unusable(part: str, arguments: Sequence[str]) -> str:
    """Says why a part of the command line means nothing, and which flag may have been meant."""
    # Of --video=yes, tyro takes --video and leaves "yes" over.
    argument = next((whole for whole in arguments if whole.endswith(f"={part}")), part)
    name = argument.partition("=")[0]
    defaults = dict(configs.flat_items(Config()))
    switch = name.removeprefix("--").removeprefix("no_")
    if isinstance(defaults.get(switch), bool):
        return f"{argument}: takes no value; give --{switch} or --no_{switch}"
    near = difflib.get_close_matches(name, [f"--{flag}" for flag in defaults], n=1)
    return f"{name}: no such flag" + (f"; did you mean {near[0]}?" if near else " (see --help)")


@contextlib.contextmanager
def _captured(complaint: io.StringIO) -> Iterator[None]:
    """Catches what tyro prints, unwrapped: it draws a box as wide as the terminal."""
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "10000"
    try:
        with contextlib.redirect_stderr(complaint):
            yield
    finally:
        del os.environ["COLUMNS"]
        if columns is not None:
            os.environ["COLUMNS"] = columns


def _one_line(box: str) -> str:
    """Returns what is wrong: the first line of the text in tyro's box."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()[1:]]
    return f"{next(filter(None, lines), 'unusable flags')} (see --help)"


def fail(error: ConfigError) -> int:
    """Prints a line a problem to standard error and returns the exit status of unusable input."""
    for problem in error.problems:
        print(f"{PROBLEM_PREFIX}{problem}", file=sys.stderr)
    return 2
