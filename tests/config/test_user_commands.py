"""Printed commands are pasted into a real shell, in the folder where they were printed."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.helpers.runs import PROJECT

BIN = Path(sys.executable).parent


def printed(expression: str, cwd: Path, path: str) -> str:
    """Returns what an expression of `user_commands` is for a process in a folder."""
    code = f"from impala_tf.config import user_commands; print(user_commands.{expression})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pasted(command: str, cwd: Path, path: str) -> str:
    done = subprocess.run(
        ["sh", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["project", "elsewhere"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    elsewhere = tmp_path / "a folder; with $signs"
    elsewhere.mkdir()
    return PROJECT if request.param == "project" else elsewhere


@pytest.mark.parametrize("activated", [False, True])
@pytest.mark.parametrize(
    "expression",
    [
        "run_experiment('--version')",
        "frontend('--version')",
        "installed('pip', '--version')",
        "python('-m', 'pip', '--version')",
    ],
)
def test_a_printed_command_can_be_pasted(expression: str, activated: bool, folder: Path) -> None:
    path = f"{BIN}:{os.defpath}" if activated else os.defpath
    command = printed(expression, folder, path)
    assert pasted(command, folder, path).startswith(("impala_tf ", "pip "))
    assert command.startswith(("python", "pip", "impala")) == activated or "frontend" in expression
    assert "run_experiment.py" not in command or folder != PROJECT or str(PROJECT) not in command


def test_in_the_project_commands_are_short() -> None:
    python = Path(sys.executable)
    shown = python.relative_to(PROJECT) if python.is_relative_to(PROJECT) else python
    run, install = (
        printed(expression, PROJECT, os.defpath)
        for expression in ("run_experiment('--logdir=a b')", "install_extra('worlds')")
    )
    impala = f"{shown.parent}/impala train '--logdir=a b'"  # if it is that of this checkout
    assert run in (f"{shown} run_experiment.py '--logdir=a b'", impala)
    assert install == f"{shown} -m pip install -c impala_tf/constraints.txt -e '.[worlds]'"


@pytest.mark.parametrize("words", [["run_experiment.py", "--seed=1"], ["-m", "frontend"]])
def test_a_python_without_the_packages_is_named(tmp_path: Path, words: list[str]) -> None:
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    done = subprocess.run([python, *words], cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert str(python) in line and "make setup" in line
