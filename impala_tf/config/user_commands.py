"""Commands that are printed for the user, ready to be pasted into the terminal.

They name the interpreter that runs this process, and paths that are right in the current folder.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = "run_experiment.py"
FRONTEND = "-m frontend"


IS_CHECKOUT = (PROJECT / SCRIPT).is_file()
"""Whether this is a checkout, not an installed package, which has the command `impala` instead."""


def program() -> tuple[str, ...]:
    """Returns what an interpreter runs for a process of a run, from any folder."""
    if IS_CHECKOUT:
        return (str(PROJECT / SCRIPT),)
    return module("impala_tf")


def module(name: str) -> tuple[str, ...]:
    """Returns what an interpreter runs for a module of this project.

    Modules of a checkout are found only from the checkout's folder.
    """
    # -P: modules in the current folder must not hide those of the same name that Python has.
    return ("-m", name) if IS_CHECKOUT else ("-P", "-m", name)


def python(*words: str) -> str:
    """Returns this interpreter with arguments, such as '.venv/bin/python -m frontend status'."""
    return _command(Path(sys.executable), words)


def run_experiment(*flags: str) -> str:
    """Returns the command that runs `impala` with flags; without it, run_experiment.py."""
    if not IS_CHECKOUT or is_impala() or _installs_checkout():
        modes = [flag for flag in flags if flag.startswith("--mode=")]
        command = modes[-1].partition("=")[2] if modes else "train"
        return installed("impala", command, *(flag for flag in flags if flag not in modes))
    return python(in_current_folder(PROJECT / SCRIPT), *flags)


def is_impala() -> bool:
    """Returns whether the user started `impala`."""
    path = Path(sys.argv[0])
    return path.name == "impala" or path.parts[-2:] == ("impala_tf", "__main__.py")


@functools.cache
def _installs_checkout() -> bool:
    """Returns whether this interpreter's `impala` runs this checkout."""
    try:
        source = metadata.distribution("impala_tf").read_text("direct_url.json") or "{}"
    except metadata.PackageNotFoundError:
        return False
    is_here = (Path(sys.executable).parent / "impala").exists()
    return is_here and json.loads(source).get("url") == PROJECT.as_uri()


def frontend(*words: str) -> str:
    """Returns the command that runs the launcher with arguments."""
    words = tuple(
        f"{flag}={in_current_folder(Path(value))}" if flag == "--logdir" else word
        for word in words
        for flag, _, value in [word.partition("=")]
    )
    if IS_CHECKOUT and not _installs_checkout() and in_current_folder(PROJECT) == ".":
        return python("-m", "frontend", *words)  # no other folder has this module
    return installed("impala", "cluster", *words)


def installed(program: str, *words: str) -> str:
    """Returns the command that runs a program that a package has installed, such as tensorboard."""
    path = Path(sys.executable).parent / program
    return _command(path, words) if path.exists() else shlex.join([program, *words])


def install(*requirements: str) -> str:
    """Returns the command that installs packages, in the versions that this project pins."""
    constraints = in_current_folder(PROJECT / "impala_tf" / "constraints.txt")
    return python("-m", "pip", "install", "-c", constraints, *requirements)


def install_extra(extra: str) -> str:
    """Returns the command that installs the packages of one of this project's extras."""
    if not IS_CHECKOUT:
        return install(f"impala_tf[{extra}]")
    return install("-e", f"{in_current_folder(PROJECT)}[{extra}]")


def install_horovod(python: Path) -> str:
    """Returns the command that installs Horovod, which is compiled, for an interpreter."""
    script = PROJECT / "impala_tf" / "frontend" / "install_horovod.sh"
    return shlex.join(["sh", *map(in_current_folder, (script, python))])


def in_current_folder(path: Path) -> str:
    """Returns a path relative to the current folder if it is inside it, else in full."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # the current folder may have been removed
        return str(path)


def _command(program: Path, words: tuple[str, ...] | list[str]) -> str:
    """Returns a command; it has the program's name alone if the shell would find that program."""
    path = shutil.which(program.name)
    # Their folders are compared, as virtual environments link to the same interpreter file.
    if path is not None and Path(path).parent.resolve() == program.parent.resolve():
        return shlex.join([program.name, *words])
    shortest = in_current_folder(program)
    return shlex.join([shortest if os.sep in shortest else f"./{shortest}", *words])
