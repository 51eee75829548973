"""Command line -> Given; and what --help and --version print."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from impala_tf import __version__
from impala_tf.config import config_file, flag_values, tf_config, user_commands
from impala_tf.config.errors import ConfigError
from impala_tf.config.flag_values import Given
from impala_tf.config.flags import FLAGS
from impala_tf.config.limits import checked

PROBLEM_PREFIXES = ("run_experiment.py: ", "impala: ")
"""What a line on standard error that reports wrong flags begins with."""
_RESOLVED = ("train", "describe", "benchmark")
_OF_RUNS = ("test", "report", "export")
_PRINTING = ("-h", "--help", "--help_all", "--help-all", "--version")

Values = Callable[[Given], Mapping[str, Any]]
"""Takes the given flags; returns the values that flags have if they are not given."""


class OneLineParser(argparse.ArgumentParser):
    """Says in one line what is wrong, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def parse(
    arguments: Sequence[str],
    values: Values = Given.everything,
    environment: Mapping[str, str] = os.environ,
) -> Given:
    """Returns the flags that a command line gives, without the program.

    --help, --help_all (with `values` as defaults) and --version print and end the process. If the
    flags give no role, the variable TF_CONFIG of `environment` may give one; {} if the flags are
    those of another process. Raises ConfigError: an unknown flag, a value of the wrong type or out
    of range, a file of flags that is not trusted (see `config_file`), or a bad TF_CONFIG.
    """
    printed = [word for word in arguments if word in _PRINTING]
    if "--version" in printed:
        _print(_versions())
    flags = read_flags([word for word in arguments if word not in _PRINTING])
    places: dict[str, str] = {}
    if (file := flags.pop("config", None)) is not None:
        in_file, places = config_file.read(file, flags)
        flags = {**in_file, **flags}
    try:
        if printed:
            _print(_help(printed, Given(flags), values))
        return checked(tf_config.applied(Given(flags), environment))
    except ConfigError as error:
        raise ConfigError([_located(line, places) for line in error.problems]) from error


def read_flags(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns {flag: value} of the words of a command line.

    A flag that may be repeated collects its values; otherwise, the last one counts. None stands for
    a request for the default, such as --agent_name=auto. Words that are no flags are the folders of
    the runs that impala test, report or export reads. Raises ConfigError: one line for every word
    that is not a flag, or has a value of the wrong type.
    """
    try:
        found, others = _parser().parse_known_args(list(map(_underscored, arguments)))
    except argparse.ArgumentError as error:
        name, problem = str(error.argument_name), error.message
        if FLAGS[name.removeprefix("--").removeprefix("no_")].kind is bool:
            problem = f"takes no value; give {name} or --no_{name.removeprefix('--')}"
        raise ConfigError(f"{name}: {problem}") from None
    typed: dict[str, Any] = vars(found)
    folders, problems = _sort_others(others)
    mode = (typed.get("mode") or ["train"])[-1]
    if mode in _OF_RUNS and folders:
        typed["logdir"] = typed.get("logdir", []) + folders
    elif folders:
        problems += [_no_flag(word) for word in folders]
    flags = {}
    for name, value in typed.items():
        if FLAGS[name].kind is bool:
            flags[name] = value
            continue
        try:
            items = [flag_values.of_text(name, text) for text in value]
        except ValueError as error:
            problems.append(str(error))
            continue
        flags[name] = sum(items, ()) if FLAGS[name].is_repeated else items[-1]
        if name == "logdir" and mode == "report":
            flags[name] = ",".join(items)
    if problems:
        raise ConfigError(problems)
    return flags


def _underscored(word: str) -> str:
    """Returns --batch-size as --batch_size."""
    name, equals, value = word.partition("=")
    is_flag = word.startswith("--")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if is_flag else word


@functools.cache
def _parser() -> argparse.ArgumentParser:
    """Returns a parser that keeps the texts of all flags, so that all wrong ones can be named."""
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS
    )
    for name, flag in FLAGS.items():
        if flag.kind is bool:
            parser.add_argument(f"--{name}", action="store_true")
            parser.add_argument(f"--no_{name}", dest=name, action="store_false")
        else:
            parser.add_argument(f"--{name}", action="append")
    return parser


def _sort_others(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the words that are no flags, and a problem for each unknown flag."""
    folders, problems = [], []
    takes_next = False
    for word in words:
        if word.startswith("-"):
            problems.append(_no_flag(word))
        elif not takes_next:
            folders.append(word)
        takes_next = word.startswith("-") and "=" not in word
    return folders, problems


def _no_flag(word: str) -> str:
    typed = word.partition("=")[0]
    if hint := flag_values.meant(typed.lstrip("-")):
        return f"{typed}: no such flag{hint}"
    if typed.startswith("-"):
        return f"{typed}: no such flag (see --help_all)"
    flag = "logdir" if Path(word).is_dir() else "level_name"
    return f"{word}: no such flag; flags begin with --: --{flag}={word}"


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
    return help_pages.page(prog, mode, resolved, everything=everything, others=others)


def print_for_reader(text: str) -> None:
    """Prints a long text; quiet if the reader closes the pipe early, as `--help | head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # Python flushes once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _versions() -> str:
    try:
        tensorflow = f"TensorFlow {importlib.metadata.version('tensorflow')}"
    except importlib.metadata.PackageNotFoundError:
        tensorflow = "no TensorFlow"
    return f"impala_tf {__version__}, {tensorflow}, Python {platform.python_version()}"


def fail(error: ConfigError) -> int:
    """Prints one line per problem to standard error; returns the exit status of invalid input."""
    for problem in error.problems:
        print(f"{program()}: {problem}", file=sys.stderr)
    return 2
