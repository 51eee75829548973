"""What README and docs type: runs would start (--dry_run), and commands for a finished run work."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from impala_tf import main
from tests.helpers.runs import PROJECT, Run
from tests.test_commands_in_docs import ALL, words_of

# A role of a run, a run that is not there, a mounted share, or a game whose ROM is the user's.
_ELSEWHERE = re.compile(r"--(job_name|join|start_from|mirror|config|help)\b|retro:Pong")
SHORT = ("--level_name=CartPole-v1", "--total_environment_frames=4000", "--num_actors=1")
COMMANDS = dict.fromkeys(
    tuple(words_of(line))
    for page, line in ALL
    if not page.startswith("sandbox") and not _ELSEWHERE.search(line)  # those are records
)
RUNS = [words for words in COMMANDS if words[:2] == ("impala", "train")]
_AFTERWARDS = ("test", "report", "export", "describe", "completion")
AFTERWARDS = {  # one of those that differ in a folder alone
    tuple(re.sub(r"=[\w./-]+$", "=", word) for word in words): words
    for words in COMMANDS
    if words[0] == "impala" and words[1] in _AFTERWARDS
}.values()


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


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logdir of a short run."""
    logdir = tmp_path_factory.mktemp("finished") / "run"
    code, out, err = Run(*SHORT, f"--logdir={logdir}").wait()
    assert code == 0, out + err
    return logdir


@pytest.mark.xdist_group("finished_run")
@pytest.mark.parametrize("words", AFTERWARDS, ids=" ".join)
def test_a_command_for_a_finished_run_works(
    words: tuple[str, ...],
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    logdirs = [word.partition("=")[2] for word in words if word.startswith("--logdir=")]
    for name in ",".join(logdirs).split(","):  # each stands for the one run
        if name and not (tmp_path / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(finished_run, tmp_path / name)
    fewer = ["--test_num_episodes=2"] * (words[1] == "test")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [*words, *fewer])
    assert main.main() == 0
    assert capsys.readouterr().out
