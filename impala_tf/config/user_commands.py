"""Commands that are printed for the user, ready to be pasted into the terminal.

They name the interpreter that runs this process, and paths that are right in the current folder.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
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
    """Returns the command that runs run_experiment.py, or the installed `impala`, with flags."""
    if not IS_CHECKOUT:
        modes = [flag for flag in flags if flag.startswith("--mode=")]
        command = modes[-1].partition("=")[2] if modes else "train"
        return installed("impala", command, *(flag for flag in flags if flag not in modes))
    return python(in_current_folder(PROJECT / SCRIPT), *flags)


def from_anywhere(mode: str) -> tuple[str, ...]:
    """Returns the words of the command for a mode, valid on any machine, for documents."""
    if not IS_CHECKOUT:
        return ("impala", mode)
    return ("python", SCRIPT, *([] if mode == "train" else [f"--mode={mode}"]))


def frontend(*words: str) -> str:
    """Returns the command that runs the launcher with arguments."""
    words = tuple(
        f"{flag}={in_current_folder(Path(value))}" if flag == "--logdir" else word
        for word in words
        for flag, _, value in [word.partition("=")]
    )
    is_installed = (Path(sys.executable).parent / "impala").exists()
    if IS_CHECKOUT and not is_installed and in_current_folder(PROJECT) == ".":
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
