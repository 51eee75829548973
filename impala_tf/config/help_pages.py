"""What --help, --help_all and completion show; argparse does the layout."""

from __future__ import annotations

import argparse
import inspect
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from impala_tf.config.algorithms import ALGORITHMS, algorithm
from impala_tf.config.flags import FLAGS, GROUPS, Flag, texts

# The end of a text, which is left out where the preset's value is shown.
_FROM_PRESET = re.compile(r"\s*Default: preset[^.]*\.")
_WIDEST = 100
_COLUMN = 32

COMMANDS = {
    "train": "train on this machine, or on the machines of a CSV file",
    "test": "play whole games with the newest checkpoint of a run",
    "report": "write a page that compares runs",
    "export": "write a run's agent for others: a folder to share",
    "describe": "print an agent's layers and parameters",
    "benchmark": "measure every part of a run on this machine, and what limits it",
}
"""{name, as in --mode=NAME: what it does}."""
OTHER_COMMANDS = {
    "cluster": "set up machines for a run, and look after a launched run: status, logs, stop, ...",
    "compare": "train variants with several seeds, and compare them: compare FLAGS -- FLAGS ...",
    "reproduce": "check whether a level still learns as it did, with several seeds",
    "sweep": "search for flags with Optuna",
    "levels": "list the levels that this machine has; a word filters them, or names a list",
    "agents": "list the networks",
    "completion": "print a script that completes flags in bash or zsh",
}
"""{name: what it does} of the commands that are not a --mode."""


def overview(prog: str) -> str:
    """Returns what `impala --help` prints: the commands."""
    rows = (COMMANDS | OTHER_COMMANDS).items()
    return "\n".join(
        [
            "IMPALA: trains agents on this machine or on a cluster, evaluates them, compares runs.",
            "",
            f"usage: {prog} COMMAND [--flag=VALUE ...]",
            "",
            *(f"  {name:<12}{about}" for name, about in rows),
            "",
            f"{prog} COMMAND --help shows what matters, --help_all every flag. Both show the"
            " values of the\nlevel that --level_name names. --version prints the versions.",
        ]
    )


def page(
    prog: str, command: str, values: Mapping[str, Any], *, everything: bool, others: str = ""
) -> str:
    """Returns the help of a command; `values` are those of flags that are not given.

    With `everything`, it has all flags in their groups, else those that matter most; `others` is a
    sentence about other commands.
    """
    about = COMMANDS[command]
    width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)
    parser = argparse.ArgumentParser(
        prog,
        f"{prog} [--flag=VALUE ...]",
        add_help=False,
        allow_abbrev=False,
        description=f"{about[0].upper()}{about[1:]}.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, 2, _COLUMN, width),
    )
    titles = {name: (name, inspect.getdoc(cls)) for name, cls in GROUPS.items()}
    if not everything:
        titles = dict.fromkeys(GROUPS, ("flags that matter most", None))
        parser.epilog = f"All flags: {prog} --help_all. {others}"
    groups = {title: parser.add_argument_group(*title) for title in dict.fromkeys(titles.values())}
    level_first = sorted(FLAGS.values(), key=lambda flag: flag.name != "level_name")
    for flag in FLAGS.values() if everything else level_first:
        if everything or command in flag.short:
            text = _text(flag, values.get(flag.name), in_short=not everything)
            _add(groups[titles[flag.group]], flag, text)
    page = parser.format_help().rstrip()
    if everything:
        page += "\n"
        page += "".join(f"\n--algorithm={name}: {algorithm(name).about}." for name in ALGORITHMS)
    return page


def command_parser(
    prog: str, cluster: argparse.ArgumentParser, choices: Mapping[str, Iterable[str]], *, end: str
) -> argparse.ArgumentParser:
    """Returns a parser of all commands and flags, for making completion scripts.

    `choices` are names that flags may have, besides others; `end` comes between a flag and its
    value, if the shell's rules have it in the flag.
    """
    parser = argparse.ArgumentParser(prog, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, about in COMMANDS.items():
        subparser = commands.add_parser(name, help=about)
        for flag in FLAGS.values():
            _add(subparser, flag, _text(flag, None), choices.get(flag.name), end)
        subparser.add_argument("--help_all", action="store_true", help="show all flags")
    for name, about in OTHER_COMMANDS.items():
        parents = [cluster] if name == "cluster" else []
        subcommand = commands.add_parser(name, help=about, parents=parents, add_help=not parents)
        if name == "completion":
            subcommand.add_argument("shell", choices=("bash", "zsh"))
    return parser


def _add(
    parser: Any, flag: Flag, text: str, choices: Iterable[str] | None = None, end: str = ""
) -> None:
    """Adds a flag to a parser or a group; for `choices` and `end`, see `command_parser`."""
    name, text = flag.name, text.replace("%", "%%")
    if flag.kind is bool:
        parser.add_argument(f"--{name}", f"--no_{name}", action="store_true", help=text)
        return
    if flag.choices:
        allowed = [choice for choice in flag.choices if choice]
        parser.add_argument(f"--{name}{end}", choices=allowed, help=text)
        return
    metavar = "NUMBER" if flag.kind in (int, float) else "TEXT"
    if name in ("logdir", "credentials", "to"):
        metavar = "FOLDER"
    parser.add_argument(f"--{name}{end}", metavar=metavar, choices=choices, help=text)


def _text(flag: Flag, value: Any, in_short: bool = False) -> str:
    """Returns a flag's text, with its value; in short, only the first sentence."""
    text = texts()[flag.name]
    without = _FROM_PRESET.sub("", text).strip()
    if in_short:
        without = text = without.partition(". ")[0].rstrip(".") + "."
    if value is None or value in ("", ()):
        return text
    if isinstance(value, bool):
        value = "on" if value else "off"
    form = {float: ".6g", int: ","}.get(type(value), "")
    return f"{without} (default: {value:{form}})".strip()
