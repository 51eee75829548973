"""Commands in README and docs: their flags exist, their values fit, and the files are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import impala_tf
from impala_tf.cluster import cluster_main as launcher
from impala_tf.config import ConfigError, command_line
from impala_tf.config.help_pages import COMMANDS, OTHER_COMMANDS
from tests.helpers.runs import PROJECT

PAGES = [
    PROJECT / "README.md",
    PROJECT / "CONTRIBUTING.md",
    *sorted((PROJECT / "docs").glob("*.md")),
    *sorted((PROJECT / "sandbox").glob("*.md")),
]
_PROGRAM = re.compile(r"^(?:[A-Z_]+=(?:'[^']*'|\S+) )*(?:python3?|impala|make) ")
_LOOP = re.compile(r"^for (\w+) in (\S+)[^;]*; do (.*); done$")
_TARGETS = re.findall(r"^([a-z%_-]+)(?:-%)?:", (PROJECT / "Makefile").read_text(), re.M)
# Placeholders for what a reader has.
_STANDS_FOR = {
    **dict.fromkeys(("DIR", "FOLDER", "LOGDIR"), "runs"),
    **{"FILE": "machines.csv", "HOST": "10.0.0.1", "NAME": "actor-0", "LEVEL": "CartPole-v1"},
    **{"K": "0", "N": "1"},
}


def commands(page: Path) -> list[str]:
    """Returns the project's commands in a page's blocks of code."""
    text = page.read_text().replace("\\\n", "")  # a command may go on in the next line
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    flags, found = "", []
    for line in map(_first_turn, lines):
        flags = line[7:-1] if line.startswith('FLAGS="') else flags
        found.append(line.replace("$FLAGS", flags).removeprefix("horovodrun -np 2 "))
    return [line for line in found if _PROGRAM.match(line)]


def _first_turn(line: str) -> str:
    """Returns what loops in a line run first; other lines stay as they are."""
    while loop := _LOOP.match(line):
        line = re.sub(rf"\$(?:{loop[1]}\b|{{{loop[1]}}})", loop[2], loop[3])
    return line


ALL = [(str(page.relative_to(PROJECT)), line) for page in PAGES for line in commands(page)]


def test_there_are_commands():
    assert len(ALL) > 60
    assert {"README.md", "docs/runs.md", "docs/cluster.md"} <= {page for page, _ in ALL}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    names = re.findall(r"`((?:tests|impala_tf|sandbox|examples)/[\w./-]+)`", page.read_text())
    assert [name for name in names if not (PROJECT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_compiles_and_uses_the_public_interface(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        compile(block, page.name, "exec")
        assert set(re.findall(r"\bimpala\.(\w+)", block)) <= set(impala_tf.__all__)


def words_of(line: str) -> list[str]:
    """Returns the program and the words of a command, with something for each placeholder."""
    text = re.sub(r"\[[^\]]*\]|\.\.\.", "", line.rstrip("\\"))  # what may be left out
    typed = shlex.split(re.split(r" && | > ", text)[0], comments=True)
    while "=" in typed[0]:
        typed.pop(0)
    program, *rest = (_STANDS_FOR.get(word, word) for word in typed)
    rest = [re.sub(r"=([A-Z]+)$", lambda m: f"={_STANDS_FOR.get(m[1], m[1])}", w) for w in rest]
    return [program, *rest]


@pytest.mark.parametrize(("page", "line"), ALL)
def test_a_command_can_be_typed(page: str, line: str) -> None:
    program, *rest = words_of(line)
    if program == "make":
        _check_make(rest)
    elif program.endswith("impala"):
        _check_impala(rest)
    elif rest[0].endswith(".py") and not rest[0].startswith("runs/"):  # a run makes those
        assert (PROJECT / rest[0]).is_file() or (PROJECT / "docs" / rest[0]).is_file(), rest[0]


def _check_make(rest: list[str]) -> None:
    target = next((word for word in rest if "=" not in word and not word.startswith("-")), "train")
    assert target in _TARGETS or target.startswith("test-"), target
    for word in rest:
        if word.startswith("ARGS=") and target == "train":
            _check_flags(shlex.split(word.removeprefix("ARGS=")))


def _check_impala(rest: list[str]) -> None:
    name = rest[0].partition("|")[0]
    assert name in {*COMMANDS, *OTHER_COMMANDS, "--help", "--version"}, name
    if name == "cluster":
        _check_launcher(rest[1:])
    elif name in ("compare", "reproduce", "sweep"):
        source = (PROJECT / "impala_tf/studies" / f"{name}_main.py").read_text()
        own = re.findall(r'"--(\w+)"', source)
        flags = [word for word in rest[1:] if word != "--"]
        _check_flags([word for word in flags if word[2:].partition("=")[0] not in own])
    elif name in COMMANDS:
        _check_flags([word for word in rest[1:] if word not in ("--help", "--help_all")])


def _check_launcher(rest: list[str]) -> None:
    rest[0] = rest[0].partition("|")[0]
    try:
        launcher.parser().parse_args(rest)
    except SystemExit as end:
        assert end.code == 0
    except ConfigError as error:
        raise AssertionError(f"{rest}: {error.problems}") from error


def _check_flags(rest: list[str]) -> None:
    rest = [word for word in rest if word not in ("--help", "--help_all", "--version", "|", "&")]
    command_line.read_flags(rest)
