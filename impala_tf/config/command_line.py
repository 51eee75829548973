"""Command line -> Given; and what --help and --version print."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from impala_tf import __version__
from impala_tf.config import presets, tf_config, words
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.flags import Config
from impala_tf.config.limits import problems
from impala_tf.config.own_levels import kwargs_text, level_kwargs

PROBLEM_PREFIXES = ("run_experiment.py: ", "impala: ")
"""A line on standard error that begins with one of these names a problem of the flags."""
_DESCRIPTION = (
    "IMPALA: trains on this machine or on a cluster, evaluates a trained agent, or compares runs."
    " --version prints the versions of this project, TensorFlow and Python."
)
_PRINTING = ("-h", "--help", "--version")


def parse(arguments: Sequence[str]) -> Given:
    """Returns the flags that a command line gives.

    `--help` prints help and the presets, `--version` the versions, and both end the process.

    If the flags give no role, the environment variable TF_CONFIG may (see `tf_config`).

    Raises:
      ConfigError: an unknown flag, a value of the wrong type or out of range, or a bad TF_CONFIG.
    """
    if any(word in _PRINTING or word.startswith("--tyro-") for word in arguments):
        _print(arguments)
    if found := words.problems(arguments):
        raise ConfigError(found)
    given = tf_config.applied(Given(words.given(arguments)), os.environ)
    if given["mode"] == "report" and given["logdir"] is not None:
        logdirs = [word.value for word in words.read(arguments) if word.name == "logdir"]
        given = given.replace(logdir=",".join(map(str, logdirs)))
    if found := problems(given):
        raise ConfigError(found)
    if given["level_kwargs"]:
        given = given.replace(level_kwargs=kwargs_text(level_kwargs(given["level_kwargs"])))
    return given


def _print(arguments: Sequence[str]) -> NoReturn:
    """Prints the help, the versions, or a script that completes flags, and ends the process."""
    try:
        if "--version" in arguments:
            print(_versions())
        else:
            _print_flags(arguments)
            if not any(word.startswith("--tyro-") for word in arguments):
                print(f"\nWhat the presets hold:\n\n{presets.table()}")
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads the rest, as in `--help | head`
        # Python flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def _print_flags(arguments: Sequence[str]) -> None:
    """Prints the flags, or with --tyro-print-completion a script that completes them."""
    import tyro  # no run needs it

    with contextlib.suppress(SystemExit):
        tyro.cli(
            Config,
            prog="run_experiment.py",
            description=_DESCRIPTION,
            args=list(arguments),
            use_underscores=True,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.UseAppendAction),
        )


def _versions() -> str:
    try:
        tensorflow = f"TensorFlow {importlib.metadata.version('tensorflow')}"
    except importlib.metadata.PackageNotFoundError:
        tensorflow = "no TensorFlow"
    return f"impala_tf {__version__}, {tensorflow}, Python {platform.python_version()}"


def fail(error: ConfigError) -> int:
    """Prints one line per problem to standard error; returns the exit status of invalid input."""
    is_command = Path(sys.argv[0]).name in ("impala", "__main__.py")
    for problem in error.problems:
        print(f"{PROBLEM_PREFIXES[is_command]}{problem}", file=sys.stderr)
    return 2
