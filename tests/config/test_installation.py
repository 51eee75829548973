"""Started with a Python that lacks the packages: one line that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.helpers.runs import PROJECT


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter without packages."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project that nobody has set up."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(PROJECT / "run_experiment.py", folder)
    for package in ("impala_tf", "frontend"):
        shutil.copytree(PROJECT / package, folder / package)
    return folder


def run(interpreter: Path, *words: str, cwd: Path) -> str:
    """Returns the only line that is printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [interpreter, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "name"),
    [(["run_experiment.py", "--seed=1"], "run_experiment.py"), (["-m", "frontend"], "frontend")],
)
def test_a_project_that_was_not_set_up(
    bare_python: Path, project: Path, words: list[str], name: str
) -> None:
    command = " ".join(words[:1] if words[0] == name else words)
    assert run(bare_python, *words, cwd=project) == (
        f"{name}: the project's packages are not installed; run make setup, then"
        f" .venv/bin/python {command}"
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [(["run_experiment.py", "--seed=1"], "run_experiment.py"), (["-m", "frontend"], "frontend")],
)
def test_a_project_whose_environment_was_not_used(
    bare_python: Path, project: Path, words: list[str], name: str
) -> None:
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "python").symlink_to(sys.executable)
    command = " ".join(words[:1] if words[0] == name else words)
    assert run(bare_python, *words, cwd=project) == (
        f"{name}: {bare_python} does not have the project's packages; use"
        f" .venv/bin/python {command}"
    )


def test_from_another_folder_the_paths_are_whole(
    bare_python: Path, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = project / "run_experiment.py"
    assert run(bare_python, str(script), cwd=tmp_path_factory.mktemp("elsewhere")).endswith(
        f"; run make -C {project} setup, then {project}/.venv/bin/python {script}"
    )
