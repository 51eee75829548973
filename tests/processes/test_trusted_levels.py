"""A run of someone else may name a Python module: its code does not run without consent."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.runs import PROJECT


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A logdir whose level is in a module that leaves a file when it is imported."""
    logdir = tmp_path / "foreign"
    logdir.mkdir()
    flags = {"level_name": "someones_levels:Level-v0", "agent_name": "MLPAgent"}
    (logdir / "config.json").write_text(json.dumps({"flags": flags}))
    code = f"open({str(tmp_path / 'imported')!r}, 'w').close()\n"
    (tmp_path / "someones_levels.py").write_text(code)
    return logdir


def run(foreign: Path, *flags: str, stdin: int = subprocess.DEVNULL) -> tuple[int, str, bool]:
    """Returns the exit status, what was printed, and whether the module was imported."""
    done = subprocess.run(
        [sys.executable, str(PROJECT / "run_experiment.py"), f"--logdir={foreign}", *flags],
        cwd=foreign.parent, stdin=stdin, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(foreign.parent)},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, (foreign.parent / "imported").exists()


LEVEL = {"level_name": "someones_levels:Level-v0"}


@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("export", LEVEL),
        ("test", {**LEVEL, "trust_level_module": True}),  # only the command line may say this
        ("test", {"level_name": "CartPole-v1", "agent_name": "someones_levels:Own"}),
        ("test", {"level_name": "CartPole-v1", "algorithm": "someones_levels:Own"}),
    ],
)
def test_the_module_of_a_foreign_run_is_not_imported(
    foreign: Path, mode: str, flags: dict[str, object]
) -> None:
    (foreign / "config.json").write_text(json.dumps({"flags": flags}))
    status, printed, imported = run(foreign, f"--mode={mode}")
    assert (status, imported) == (2, False)
    assert "someones_levels" in printed and "--trust_level_module" in printed


@pytest.mark.parametrize(
    "consent", ["--trust_level_module", "--level_name=someones_levels:Level-v0"]
)
def test_with_consent_it_is_imported(foreign: Path, consent: str) -> None:
    status, printed, imported = run(foreign, "--mode=test", consent)
    assert (status, imported) == (2, True)
    assert "no such level" in printed


@pytest.mark.parametrize(("answer", "expected"), [(b"y\n", True), (b"\n", False)])
def test_on_a_terminal_the_user_is_asked(foreign: Path, answer: bytes, expected: bool) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    status, printed, imported = run(foreign, "--mode=test", stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert (status, imported) == (2, expected)
    assert "imports someones_levels, whose code runs here. Import? [y/N]" in printed
