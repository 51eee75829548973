"""Scripts in sandbox/ say how they are called."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.helpers.runs import PROJECT

SCRIPTS = sorted(
    path.name for path in (PROJECT / "sandbox").glob("*.py") if "__main__" in path.read_text()
)

pytestmark = pytest.mark.slow


def test_there_are_scripts() -> None:
    assert {"one_process.py", "plot_metrics.py", "sweep.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_names_the_script(script: str) -> None:
    done = subprocess.run(
        [sys.executable, f"sandbox/{script}", "--help"],
        cwd=PROJECT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script} ")
