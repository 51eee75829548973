"""What --help, --help_all and completion show; argparse does the layout.

argparse does not read the command line of a run (see `words`). A flag's text is the docstring of
its field in `flags` or a module named NAME_flags.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import itertools
import re
import shutil
import sys
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from impala_tf.config import words
from impala_tf.config.flags import Config

# The end of a text, which is left out where the preset's value is shown.
_FROM_PRESET = re.compile(r"\s*Default: preset[^.]*\.")
_WIDEST = 100
_COLUMN = 32


class Command(NamedTuple):
    """A subcommand that is a --mode."""

    about: str
    """One line."""
    flags: tuple[str, ...]
    """What --help shows; --help_all shows all."""


COMMANDS = {
    "train": Command(
        "train on this machine, or on the machines of a CSV file",
        ("level_name", "algorithm", "agent_name", "core", "preset", "total_environment_frames",
         "seed", "logdir", "fresh", "start_from", "num_actors", "envs_per_actor", "batch_size",
         "unroll_length", "learning_rate", "entropy_cost", "discounting", "reward_clipping",
         "stop_at_return", "eval_every", "device", "workers_csv_path", "track", "dry_run"),
    ),
    "test": Command(
        "play whole games with the newest checkpoint of a run",
        ("logdir", "checkpoint", "test_num_episodes", "test_policy", "video", "seed",
         "trust_level_module"),
    ),
    "report": Command(
        "write a page that compares runs",
        ("logdir", "to", "trust_level_module"),
    ),
    "export": Command(
        "write a run's agent for others: a folder to share",
        ("logdir", "to", "checkpoint", "test_num_episodes", "trust_level_module"),
    ),
    "describe": Command(
        "print an agent's layers and parameters",
        ("level_name", "agent_name", "core", "width_scale", "precision"),
    ),
    "benchmark": Command(
        "measure every part of a run on this machine, and what limits it",
        ("level_name", "agent_name", "num_actors", "envs_per_actor"),
    ),
}  # fmt: skip
"""{name, as in --mode=NAME: its help}."""
OTHER_COMMANDS = {
    "cluster": "set up machines for a run, and look after a launched run: status, logs, stop, ...",
    "levels": "list the levels that this machine has; a word filters them, or names a list",
    "agents": "list the networks",
    "completion": "print a script that completes flags in bash or zsh",
}
"""{name: what it does} of the commands that are not a --mode."""


def overview(prog: str) -> str:
    """Returns what `impala --help` prints: the commands."""
    rows = {name: command.about for name, command in COMMANDS.items()} | OTHER_COMMANDS
    lines = [f"  {name:<12}{about}" for name, about in rows.items()]
    return "\n".join([
        "IMPALA: trains agents on this machine or on a cluster, evaluates them, compares runs.",
        "", f"usage: {prog} COMMAND [--flag=VALUE ...]", "", *lines, "",
        f"{prog} COMMAND --help shows what matters, --help_all every flag. Both show the values "
        "of the\nlevel that --level_name names. --version prints the versions.",
    ])  # fmt: skip


def page(
    prog: str, command: str, values: Mapping[str, Any], *, everything: bool, others: str = ""
) -> str:
    """Returns the help of a command.

    Args:
      prog: what the user typed before the command's flags.
      command: a key of COMMANDS.
      values: {flag: the value it has if it is not given}.
      everything: whether to show all flags, in their groups, or only those that matter most.
      others: a sentence about other commands.
    """
    about = COMMANDS[command].about
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    parser = argparse.ArgumentParser(
        prog, f"{prog} [--flag=VALUE ...]", add_help=False, allow_abbrev=False,
        description=f"{about[0].upper()}{about[1:]}.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, _COLUMN, width),
    )  # fmt: skip
    if everything:
        for name, hint in typing.get_type_hints(Config).items():
            _add(parser.add_argument_group(name, hint.__doc__), typing.get_type_hints(hint), values)
    else:
        group = parser.add_argument_group("flags that matter most")
        _add(group, COMMANDS[command].flags, values, in_short=True)
        parser.epilog = f"All flags: {prog} --help_all. {others}"
    return parser.format_help().rstrip()


def command_parser(
    prog: str, cluster: argparse.ArgumentParser, choices: Mapping[str, Iterable[str]], *, end: str
) -> argparse.ArgumentParser:
    """Returns a parser of all commands and flags, for making completion scripts.

    Args:
      prog: the program.
      cluster: the parser of the launcher's commands.
      choices: {flag: names that it may have}, of flags that may have others, too.
      end: what is typed between a flag and its value, if the shell's rules have it in the flag.
    """
    parser = argparse.ArgumentParser(prog, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.about)
        _add(subparser, words.flags(), {}, choices=choices, end=end)
        subparser.add_argument("--help_all", action="store_true", help="show all flags")
    for name, about in OTHER_COMMANDS.items():
        subcommand = commands.add_parser(name, help=about)
        if name == "cluster":
            added = subcommand.add_subparsers(metavar="COMMAND")
            for action in cluster._actions:
                if isinstance(action, argparse._SubParsersAction):
                    for each, parent in action.choices.items():
                        added.add_parser(each, parents=[parent], add_help=False)
        elif name == "completion":
            subcommand.add_argument("shell", choices=("bash", "zsh"))
    return parser


@functools.cache
def texts() -> dict[str, str]:
    """Returns {flag: its docstring}."""
    groups = typing.get_type_hints(Config).values()
    modules = {cls.__module__ for group in groups for cls in group.__mro__[:-1]}
    docstrings: dict[str, str] = {}
    for module in modules:
        classes = ast.parse(inspect.getsource(sys.modules[module])).body
        bodies = [node.body for node in classes if isinstance(node, ast.ClassDef)]
        for field, below in itertools.chain.from_iterable(map(itertools.pairwise, bodies)):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                docstrings[ast.unparse(field.target)] = " ".join(text.split())
    return docstrings


def _add(
    parser: Any,
    names: Iterable[str],
    values: Mapping[str, Any],
    *,
    in_short: bool = False,
    choices: Mapping[str, Iterable[str]] = {},  # noqa: B006  # is not changed
    end: str = "",
) -> None:
    """Adds flags to a parser or a group; see `command_parser`.

    `in_short`: with only the first sentence of each text.
    """
    for name in names:
        kind, value = words.flags()[name].kind, values.get(name)
        text = _text(name, value, in_short).replace("%", "%%")
        if kind is bool:
            parser.add_argument(f"--{name}", f"--no_{name}", action="store_true", help=text)
        elif typing.get_origin(kind) is Literal:
            allowed = [choice for choice in typing.get_args(kind) if choice]
            parser.add_argument(f"--{name}{end}", choices=allowed, help=text)
        else:
            known, metavar = choices.get(name), _metavar(name, kind)
            parser.add_argument(f"--{name}{end}", metavar=metavar, choices=known, help=text)


def _metavar(name: str, kind: Any) -> str:
    if kind in (int, float):
        return "NUMBER"
    if name in ("logdir", "credentials", "to") or name.endswith("folder"):
        return "FOLDER"
    return "FILE" if name.endswith(("_path", "_json")) else "TEXT"


def _text(name: str, value: Any, in_short: bool) -> str:
    text = texts()[name]
    without = _FROM_PRESET.sub("", text).strip()
    if in_short:
        without = text = without.partition(". ")[0].rstrip(".") + "."
    if value is None or value in ("", ()):
        return text
    if isinstance(value, bool):
        value = "on" if value else "off"
    form = {float: ".6g", int: ","}.get(type(value), "")
    return f"{without} (default: {value:{form}})".strip()
