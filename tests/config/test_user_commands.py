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


def printed(command: list[str], cwd: Path, path: str) -> str:
    """Returns what a command prints in a folder."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("expression", "activated"),
    [
        ("impala('train', '--version')", True),
        ("impala('train', '--version')", False),
        ("python('-m', 'pip', '--version')", False),
    ],
)
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_printed_command_can_be_pasted(
    expression: str, activated: bool, is_elsewhere: bool, tmp_path: Path
) -> None:
    folder = PROJECT
    if is_elsewhere:
        folder = tmp_path / "a folder; with $signs"
        folder.mkdir()
    path = f"{BIN}:{os.defpath}" if activated else os.defpath
    code = f"from impala_tf.config import user_commands; print(user_commands.{expression})"
    command = printed([sys.executable, "-c", code], folder, path)
    assert printed(["sh", "-c", command], folder, path).startswith(("impala_tf ", "pip "))
    assert command.startswith(("python", "pip", "impala")) == activated


def test_a_python_without_the_packages_is_named(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    for words in (["run_experiment.py", "--seed=1"], ["-m", "frontend"]):
        done = subprocess.run([python, *words], cwd=PROJECT, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert str(python) in line and "make setup" in line
