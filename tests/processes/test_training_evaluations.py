"""--eval_every: games while a run trains, of the last checkpoint, too, in a file of their own."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.logdir import Logdir
from impala_tf.processes.training_evaluations import TrainingEvaluations
from tests.helpers.waiting import wait_until

# Plays with the "checkpoint" that it finds in a file.
PLAYS = """
import json, pathlib, sys
frames = int(pathlib.Path(sys.argv[1]).read_text())
row = dict(level_name="L", return_mean=7.0, episodes=3, played="other seeds", protocol="P")
print("evaluation: " + json.dumps(dict(environment_frames=frames, rows=[row])))
"""
NOTES = PLAYS.replace("rows=[row]", "rows=[row], notes=['games were cut']")
# Its level prints at exit what looks like a result.
PRINTS = f"{PLAYS}print('evaluation: finished'); print('evaluation: 3')"
# Its level has a fault.
FAILS = """
from impala_tf.config import ConfigError
from impala_tf.processes import beside_main
def main(arguments):
    try:
        [][1]
    except IndexError as error:
        raise ConfigError("--level_name=L: raised IndexError") from error
beside_main.run(main)
"""
HANGS = "import time; time.sleep(600)"

Rows = Sequence[Mapping[str, Any]]


class Training:
    """A run that reaches frames and writes checkpoints."""

    def __init__(self, folder: Path, script: str, every: int = 1000) -> None:
        self._newest = folder / "newest"
        (folder / "script.py").write_text(script)
        (folder / "run").mkdir(exist_ok=True)
        self.found: list[Rows] = []
        self.evaluations = TrainingEvaluations(
            configs.replace(Config(), eval_every=every),
            Logdir(folder / "run"),
            self.found.append,
            (sys.executable, str(folder / "script.py"), str(self._newest)),
        )

    def reach(self, frames: int) -> None:
        """Writes a row, and a checkpoint with it."""
        self._newest.write_text(str(frames))
        self.evaluations.on_row({"environment_frames": frames})
        self.evaluations.on_checkpoint(self._newest)

    def find(self, count: int) -> None:
        """Waits until so many evaluations are there."""

        def found() -> bool:
            frames = int(self._newest.read_text())
            self.evaluations.on_row({"environment_frames": frames})
            return len(self.found) >= count

        wait_until(found, poll_s=0.05)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Makes runs, and ends what they have started."""
    made: list[Training] = []

    def make(script: str, **more: Any) -> Training:
        made.append(Training(tmp_path, script, **more))
        return made[-1]

    yield make
    for training in made:
        training.evaluations.close()


def test_the_last_checkpoint_of_a_run_is_evaluated_too(train: Callable[..., Training]) -> None:
    """It is the one that people use and quote."""
    training = train(PLAYS)
    for frames in (500, 1100):
        training.reach(frames)
    training.find(1)
    training.reach(1900)  # not due before 2,000
    training.evaluations.close(lambda: True)
    assert len(training.found) == 2


def test_the_log_says_where_a_level_raised_and_ends_with_the_line() -> None:
    """The run's warning has only that line, and names the log."""
    done = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True)
    *before, last = done.stderr.splitlines()
    assert (done.returncode, last.partition(": ")[2]) == (2, "--level_name=L: raised IndexError")
    assert before[0].startswith("Traceback ")
    assert before[-1] == "IndexError: list index out of range"


def test_what_a_level_prints_last_is_not_taken_for_a_result(train: Callable[..., Training]) -> None:
    """It would end the run, which an evaluation never does."""
    training = train(PRINTS)
    for frames in (500, 1100):
        training.reach(frames)
    training.find(1)
    assert training.found[0][0]["return_mean"] == 7.0


def test_what_its_user_must_know_is_a_note(
    train: Callable[..., Training], caplog: pytest.LogCaptureFixture
) -> None:
    training = train(NOTES)
    for frames in (500, 1100):
        training.reach(frames)
    training.find(1)
    told = [record for record in caplog.records if getattr(record, "for_user", False)]
    assert [record.getMessage() for record in told] == ["games were cut"]


def test_it_is_not_evaluated_twice(train: Callable[..., Training]) -> None:
    """A run's end would take as long again, for the same figure."""
    training = train(PLAYS)
    for frames in (500, 1100):
        training.reach(frames)
    training.evaluations.close(lambda: True)
    assert len(training.found) == 1


@pytest.mark.parametrize("due", [True, False])
def test_a_run_that_is_stopped_waits_for_no_game(train: Callable[..., Training], due: bool) -> None:
    """Ctrl-C would seem to hang."""
    training = train(HANGS)
    for frames in (500, 1100 if due else 900):
        training.reach(frames)
    process = training.evaluations.process
    assert (process is not None) == due
    training.evaluations.close(lambda: False)
    assert not training.found
    assert process is None or process.returncode is not None
    assert not training.evaluations.is_wanted


def test_a_last_evaluation_that_takes_too_long_is_not_lost_silently(
    train: Callable[..., Training],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The newest figure would be taken for that of the end."""
    training = train(HANGS)
    for frames in (500, 900):
        training.reach(frames)
    work = training.evaluations.work._replace(longest_end_s=0.5)
    monkeypatch.setattr(training.evaluations, "work", work)
    training.evaluations.close(lambda: True)
    assert "no evaluation: the last one was not complete 0 minutes after training" in caplog.text


def test_a_game_without_end_does_not_keep_later_checkpoints_from_being_evaluated(
    train: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = train(HANGS)
    for frames in (500, 1100):
        training.reach(frames)
    first = training.evaluations.process
    work = training.evaluations.work._replace(longest_s=0.0)
    monkeypatch.setattr(training.evaluations, "work", work)
    training.reach(2100)
    assert first is not None and first.returncode is not None
    assert training.evaluations.process is not first


def evaluations(logdir: Path) -> list[dict[str, str]]:
    with (logdir / "evaluation.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.long
def test_a_run_has_rows_and_a_resumed_one_appends_to_them(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Two levels, so that each has a row."""
    logdir = tmp_path / "run"

    def train(frames: int) -> str:
        run = start(
            "--level_name=CartPole-v0,CartPole-v1", "--agent_name=MLPAgent", "--num_actors=1",
            f"--logdir={logdir}", "--eval_every=10_000", "--test_num_episodes=2",
            "--checkpoint_interval_s=2", "--metrics_interval_s=1",
            f"--total_environment_frames={frames}",
        )  # fmt: skip
        code, out, err = run.wait()
        assert code == 0, err + out
        assert not run.alive()
        return str(out)

    out = train(12_000)
    before = evaluations(logdir)
    assert [row["level_name"] for row in before[-2:]] == ["CartPole-v0", "CartPole-v1"]
    last = before[-1]
    assert int(last["environment_frames"]) >= 12_000
    assert (last["episodes"], last["played"], last["policy"]) == ("2", "other seeds", "sampled")
    assert float(last["return_min"]) <= float(last["return_mean"]) <= float(last["return_max"])
    assert "CartPole-v1" in last["protocol"]
    assert any(line.startswith("done: ") and "evaluation " in line for line in out.splitlines())
    status = json.loads((logdir / "status.json").read_text())
    assert status["evaluation"]["environment_frames"] == int(last["environment_frames"])
    train(24_000)
    after = evaluations(logdir)
    assert after[: len(before)] == before
    assert int(after[-1]["environment_frames"]) >= 24_000
