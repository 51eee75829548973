"""Runs in README and docs would start: level, network, flags and machines fit (--dry_run)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from impala_tf import main
from tests.helpers.runs import PROJECT
from tests.test_commands_in_docs import ALL, words_of

# A role of a run, a run that is not there, a mounted share, or a game whose ROM is the user's.
_ELSEWHERE = re.compile(r"--(job_name|join|start_from|mirror|config|help)\b|retro:Pong")
COMMANDS = dict.fromkeys(tuple(words_of(line)) for _, line in ALL if not _ELSEWHERE.search(line))
RUNS = [words for words in COMMANDS if words[:2] == ("impala", "train")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages tell a reader to write."""
    (tmp_path / "sandbox").symlink_to(PROJECT / "sandbox")
    machines = re.search(r"^    job,ip,.*\n(    .*\n)+", (PROJECT / "README.md").read_text(), re.M)
    level = re.search(
        r"^```python\n(.*?)^```", (PROJECT / "docs/getting_started.md").read_text(), re.M | re.S
    )
    assert machines and level
    for name in ("machines.csv", "workers.csv"):
        (tmp_path / name).write_text(machines[0].replace("    ", ""))
    (tmp_path / "my_level.py").write_text(level[1])
    monkeypatch.chdir(tmp_path)
    for path in (PROJECT / "examples", tmp_path):
        monkeypatch.syspath_prepend(str(path))
    return tmp_path


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_run_would_start(
    words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a secret")
    monkeypatch.setattr(sys, "argv", [*words, f"--logdir={folder}/run", "--dry_run"])
    assert main.main() == 0
