"""Commands that are printed for the user, ready to be pasted into the terminal.

They name programs as the user's shell finds them, and paths that are right in the current folder.
This runs with any Python 3, because the user may have started the wrong one.
"""

from __future__ import annotations

import importlib.util
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
_OLDEST = (3, 11)
# An interpreter with these has the other packages, too: see `dependencies` in pyproject.toml.
_PACKAGES = ("rich", "gymnasium", "grpc")


def require_packages(program: str) -> None:
    """Without the packages, prints a line that says what to do, and exits with status 2.

    Args:
      program: what the user started: SCRIPT or FRONTEND.
    """
    if sys.version_info >= _OLDEST and all(map(importlib.util.find_spec, _PACKAGES)):
        return
    advice = f"run {install_extra('learner')}"
    if IS_CHECKOUT:
        advice = f"run make setup in {PROJECT}, then .venv/bin/python {program}"
    print(f"{sys.executable} does not have the project's packages; {advice}", file=sys.stderr)
    sys.exit(2)


def program() -> tuple[str, ...]:
    """Returns what an interpreter runs for a process of a run, from any folder."""
    return (str(PROJECT / SCRIPT),) if IS_CHECKOUT else module("impala_tf")


def module(name: str) -> tuple[str, ...]:
    """Returns what an interpreter runs for a module of this project.

    Modules of a checkout are found only from the checkout's folder.
    """
    # -P: modules in the current folder must not hide those of the same name that Python has.
    return ("-m", name) if IS_CHECKOUT else ("-P", "-m", name)


def is_impala() -> bool:
    """Returns whether the user started `impala`."""
    path = Path(sys.argv[0])
    return path.name == "impala" or path.parts[-2:] == ("impala_tf", "__main__.py")


def python(*words: str) -> str:
    """Returns this interpreter with arguments, such as '.venv/bin/python -m pip list'."""
    return _command(Path(sys.executable), words)


def impala(command: str, *words: str) -> str:
    """Returns a command of `impala`, with its flags.

    In a checkout that nobody has installed, it is one of run_experiment.py.
    """
    is_there = Path(sys.executable).with_name("impala").exists() or shutil.which("impala")
    if is_there or not IS_CHECKOUT:
        return installed("impala", command, *words)
    if command == "cluster":
        return python("-m", "frontend", *words)
    mode = () if command == "train" else (f"--mode={command}",)
    return python(in_current_folder(PROJECT / SCRIPT), *mode, *words)


def frontend(*words: str) -> str:
    """Returns a command of the launcher, with its arguments."""
    words = tuple(
        f"{flag}={in_current_folder(Path(value))}" if flag == "--logdir" else word
        for word in words
        for flag, _, value in [word.partition("=")]
    )
    return impala("cluster", *words)


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
    script = PROJECT / "impala_tf" / "cluster" / "install_horovod.sh"
    return shlex.join(["sh", *map(in_current_folder, (script, python))])


def in_current_folder(path: Path) -> str:
    """Returns a path relative to the current folder if it is inside it, else in full."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):  # the current folder may have been removed
        return str(path)


def _command(program: Path, words: tuple[str, ...]) -> str:
    """Returns a command; it has the program's name alone if the shell would find that program."""
    path = shutil.which(program.name)
    # Their folders are compared, as virtual environments link to the same interpreter file.
    if path is not None and Path(path).parent.resolve() == program.parent.resolve():
        return shlex.join([program.name, *words])
    shortest = in_current_folder(program)
    return shlex.join([shortest if os.sep in shortest else f"./{shortest}", *words])
