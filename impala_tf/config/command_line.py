"""Command line -> Given; and what --help and --version print."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from impala_tf import __version__
from impala_tf.config import config_file, consent, presets, tf_config, user_commands, words
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.limits import checked

PROBLEM_PREFIXES = ("run_experiment.py: ", "impala: ")
"""What a line on standard error that reports wrong flags begins with."""
_MODE = re.compile(r"--mode=(\w+)")
_RESOLVED = ("train", "describe", "benchmark")
_OF_RUNS = ("test", "report", "export")
_PRINTING = ("-h", "--help", "--help_all", "--help-all", "--version")

Values = Callable[[Given], Mapping[str, Any]]
"""Takes the given flags; returns the values that flags have if they are not given."""


def parse(
    arguments: Sequence[str],
    values: Values = Given.everything,
    environment: Mapping[str, str] = os.environ,
) -> Given:
    """Returns the flags that a command line gives.

    `--help` and `--help_all` print help, `--version` prints the versions; each ends the process.

    If the flags give no role, the environment variable TF_CONFIG may give one (see `tf_config`).

    Args:
      arguments: the words of the command line, without the program.
      values: returns the default values that the help shows.
      environment: the process's variables; {} if the flags are those of another process.

    Raises:
      ConfigError: an unknown flag, a value of the wrong type or out of range, a file of flags that
        is not trusted (see `consent`), or a bad TF_CONFIG.
    """
    printed = [word for word in arguments if word in _PRINTING]
    if "--version" in printed:
        _print(_versions())
    typed = words.read([word for word in arguments if word not in _PRINTING])
    if any(word.name == "mode" and word.value in _OF_RUNS for word in typed):
        typed = [_as_folder(word) for word in typed]
    flags = words.values(typed)
    places: dict[str, str] = {}
    if (file := flags.pop("config", None)) is not None:
        in_file, places = config_file.read(file)
        places = {name: place for name, place in places.items() if name not in flags}
        consent.check_file(file, flags, {name: in_file[name] for name in places}, places)
        flags = {**in_file, **flags}
    if flags.get("mode") == "report" and flags.get("logdir") is not None:
        logdirs = [str(word.value) for word in typed if word.name == "logdir"]
        flags["logdir"] = ",".join(logdirs or [flags["logdir"]])
    try:
        if printed:
            _print(_help(printed, Given(flags), values))
        return checked(tf_config.applied(Given(flags), environment))
    except ConfigError as error:
        raise ConfigError([_located(line, places) for line in error.problems]) from error


def _as_folder(word: words.Word) -> words.Word:
    """Returns a word that is no flag as the run's folder: `impala test RUN`."""
    is_flag = word.text.startswith("-")
    return word if is_flag else words.Word(f"--logdir={word.text}", "logdir", word.text)


def _located(problem: str, places: Mapping[str, str]) -> str:
    """Returns a problem; if its flag is from a file, with the file's name and line in front."""
    flag = re.match(r"--(?:no_)?(\w+)", problem)
    place = places.get(flag[1]) if flag else None
    return f"{place}: {problem}" if place else problem


def program() -> str:
    """Returns the name of the program that the user started."""
    return "impala" if user_commands.is_impala() else user_commands.SCRIPT


def _print(text: str) -> NoReturn:
    print_for_reader(text)
    sys.exit(0)


def _help(printed: Sequence[str], given: Given, values: Values) -> str:
    from impala_tf.config import help_pages  # no run needs it

    mode, name = given["mode"], program()
    if mode in _RESOLVED:
        checked(given)
    everything = any(word.startswith(("--help_", "--help-")) for word in printed)
    if name == "impala":
        prog, others = f"impala {mode}", "All commands: impala --help."
    else:
        prog = name if mode == "train" else f"{name} --mode={mode}"
        modes = "|".join(other for other in help_pages.COMMANDS if other != mode)
        others = f"Other modes: --mode={modes}, each with --help."
    resolved = values(given) if mode in _RESOLVED else given.everything()
    page = help_pages.page(prog, mode, resolved, everything=everything, others=others)
    return f"{page}\n\n{presets.algorithms()}" if everything else page


def print_for_reader(text: str) -> None:
    """Prints a long text; stays quiet if the reader closes the pipe early, as `--help | head` does.

    If the text cannot be written, as on a full disk, this ends the process with status 1.
    """
    try:
        print(text)
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.exit(f"{program()}: cannot write the output: {error.strerror or error}")


def _versions() -> str:
    try:
        tensorflow = f"TensorFlow {importlib.metadata.version('tensorflow')}"
    except importlib.metadata.PackageNotFoundError:
        tensorflow = "no TensorFlow"
    return f"impala_tf {__version__}, {tensorflow}, Python {platform.python_version()}"


def fail(error: ConfigError) -> int:
    """Prints one line per problem to standard error; returns the exit status of invalid input."""
    for problem in error.problems:
        if user_commands.is_impala():
            problem = _MODE.sub(r"impala \1", problem)
        print(f"{program()}: {problem}", file=sys.stderr)
    return 2
