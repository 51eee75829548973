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
        "impala('train', '--version')",
        "frontend('--version')",
        "installed('pip', '--version')",
        "python('-m', 'pip', '--version')",
    ],
)
def test_a_printed_command_can_be_pasted(expression: str, activated: bool, folder: Path) -> None:
    path = f"{BIN}:{os.defpath}" if activated else os.defpath
    command = printed(expression, folder, path)
    assert pasted(command, folder, path).startswith(("impala_tf ", "pip "))
    assert command.startswith(("python", "pip", "impala")) == activated


def test_in_the_project_commands_are_short() -> None:
    shown = BIN.relative_to(PROJECT) if BIN.is_relative_to(PROJECT) else BIN
    assert printed("impala('test', '--logdir=a b')", PROJECT, os.defpath) == (
        f"{shown}/impala test '--logdir=a b'"
    )
    assert printed("install_extra('worlds')", PROJECT, os.defpath) == (
        f"{shown}/python -m pip install -c impala_tf/constraints.txt -e '.[worlds]'"
    )


def test_a_checkout_without_the_command_names_its_script(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    code = "from impala_tf.config.user_commands import impala as i; print(i('test'), i('cluster'))"
    environment = {"PYTHONPATH": str(PROJECT), "PATH": os.defpath}
    done = subprocess.run(
        [tmp_path / "bin" / "python", "-c", code],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        text=True,
    )
    python = f"{tmp_path}/bin/python"
    expected = f"{python} run_experiment.py --mode=test {python} -m frontend\n"
    assert done.stdout == expected, done.stderr


@pytest.mark.parametrize("words", [["run_experiment.py", "--seed=1"], ["-m", "frontend"]])
def test_a_python_without_the_packages_is_named(tmp_path: Path, words: list[str]) -> None:
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    done = subprocess.run([python, *words], cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert str(python) in line and "make setup" in line
