"""Started with a Python that lacks the packages: one line that says what to do."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

from tests.helpers.runs import PROJECT


@pytest.mark.parametrize("words", [["run_experiment.py", "--seed=1"], ["-m", "frontend"]])
def test_a_python_without_the_packages_is_named(tmp_path: Path, words: list[str]) -> None:
    venv.create(tmp_path, with_pip=False)
    python = tmp_path / "bin" / "python"
    done = subprocess.run([python, *words], cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert str(python) in line and "make setup" in line
