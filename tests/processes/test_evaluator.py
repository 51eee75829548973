"""--eval_every and --video_every: what one process beside a run plays, and what becomes of it."""

from __future__ import annotations

import csv
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError
from impala_tf.environments import suites
from impala_tf.logdir import Logdir
from impala_tf.processes import evaluator
from impala_tf.processes.evaluator import Evaluator, Result
from tests.helpers.games import WORLDS
from tests.helpers.runs import status
from tests.helpers.samples import vector_spec
from tests.helpers.waiting import wait_until

# Plays games with the "checkpoint" that it finds in a file.
PLAYS = """
import json, os, pathlib, sys, time
print(os.nice(0))
run = pathlib.Path(sys.argv[1])
row = dict(level_name="L", return_mean=7.0, episodes=3, played="other seeds", protocol="P")
result = dict(rows=[row], notes=["games were cut"])
result["environment_frames"] = int((run / "newest").read_text())
(run / "processes" / "evaluator.json").write_text(json.dumps(result))
"""
FAILS = "print('no display'); raise SystemExit(3)"
HANGS = "import time; time.sleep(600)"


class Training:
    """A run that reaches frames and writes checkpoints."""

    def __init__(self, folder: Path, script: str, **every: int) -> None:
        (folder / "script.py").write_text(script)
        self.logdir = Logdir(folder / "run")
        self.logdir.processes.mkdir(parents=True)
        self._newest = self.logdir.path / "newest"
        self.found: list[Result] = []
        self.evaluator = Evaluator(
            configs.replace(Config(), **every or {"eval_every": 1000}),
            vector_spec(),
            self.logdir,
            lambda result, frames: self.found.append(result),
            (sys.executable, str(folder / "script.py"), str(self.logdir.path)),
        )

    def reach(self, *frames: int) -> None:
        """Writes rows, and a checkpoint with each."""
        for count in frames:
            self._newest.write_text(str(count))
            self.evaluator.on_row({"environment_frames": count})
            self.evaluator.on_checkpoint(self._newest)

    def wait(self) -> None:
        """Waits until the process has ended and its result is there."""

        def is_over() -> bool:
            self.evaluator.on_row({"environment_frames": int(self._newest.read_text())})
            return self.evaluator.process is None

        wait_until(is_over, poll_s=0.05)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Makes runs, and ends what they have started."""
    made: list[Training] = []

    def make(script: str, **every: int) -> Training:
        made.append(Training(tmp_path, script, **every))
        return made[-1]

    yield make
    for training in made:
        training.evaluator.close()


def test_games_come_when_they_are_due_and_no_more_often(train: Callable[..., Training]) -> None:
    training = train(PLAYS)
    training.reach(500)
    assert training.evaluator.process is None
    training.reach(1100)
    training.wait()
    (result,) = training.found
    assert (result.environment_frames, result.rows[0]["return_mean"]) == (1100, 7.0)
    training.reach(1900)  # the next ones are due at 2,000
    assert training.evaluator.process is None
    niceness = training.logdir.evaluator_log.read_text().splitlines()[0]
    assert int(niceness) >= min(19, os.nice(0) + 10), "the learner and its actors come first"


@pytest.mark.parametrize("last", [1100, 1900])  # 1,900 is not due: the next one is at 2,000
def test_the_last_checkpoint_gets_games_once(
    train: Callable[..., Training], caplog: pytest.LogCaptureFixture, last: int
) -> None:
    """It is the one that people use and quote. What its user must know is a note."""
    training = train(PLAYS)
    training.reach(500, 1100)
    training.wait()
    training.reach(last)
    training.evaluator.close(lambda: True)
    evaluated = [result.environment_frames for result in training.found]
    assert evaluated == sorted({1100, last})
    told = [record for record in caplog.records if getattr(record, "for_user", False)]
    assert [record.getMessage() for record in told] == ["games were cut"] * len(evaluated)


def test_a_run_that_is_stopped_waits_for_no_game(train: Callable[..., Training]) -> None:
    """Ctrl-C would seem to hang."""
    training = train(HANGS)
    training.reach(500, 1100)
    process = training.evaluator.process
    assert process is not None
    training.evaluator.close(lambda: False)
    assert not training.found
    assert not process.is_alive()
    assert not training.evaluator.awaits_games


def test_one_that_fails_is_named_once_and_the_run_goes_on(
    train: Callable[..., Training], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "impala_tf.learner")
    training = train(FAILS, video_every=1000)
    training.reach(500, 1100)
    training.wait()
    training.reach(2100)
    training.wait()
    assert not training.found
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("--video_every: no result: ")
    assert line.endswith(f": no display; see {training.logdir.evaluator_log}")


def test_a_level_that_cannot_be_drawn_is_refused_before_training() -> None:
    level_name = f"{WORLDS}:Scripted-v0"
    config = configs.replace(Config(), video_every=1000, level_name=level_name)
    with pytest.raises(ConfigError, match=f"^--level_name={level_name}: .*render"):
        evaluator.check(config, suites.spec(config.environment))


def test_a_run_has_games_and_videos_in_its_folder_tensorboard_and_wandb(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """One process plays both, with the checkpoint at the end of this short run of two levels."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = start(
        "--level_name=CartPole-v0,CartPole-v1", "--agent_name=MLPAgent", "--num_actors=1",
        "--eval_every=1000", "--test_num_episodes=2", "--video_every=1000",
        "--total_environment_frames=20_000", "--metrics_interval_s=0.2", "--track=wandb",
        "--checkpoint_interval_s=1000", f"--logdir={tmp_path}",
        environment={"WANDB_MODE": "offline"},
    )  # fmt: skip
    code, out, err = run.wait()
    assert code == 0, err + out
    assert not run.alive()
    assert any(line.startswith("done: ") and "evaluation " in line for line in out.splitlines())
    with (tmp_path / "evaluation.csv").open() as file:
        first, last = csv.DictReader(file)
    assert (first["level_name"], last["level_name"]) == ("CartPole-v0", "CartPole-v1")
    assert int(last["environment_frames"]) >= 20_000
    assert (last["episodes"], last["played"], last["policy"]) == ("2", "other seeds", "sampled")
    assert float(last["return_min"]) <= float(last["return_mean"]) <= float(last["return_max"])
    assert "CartPole-v1" in last["protocol"]
    evaluation = status(tmp_path)["evaluation"]
    assert evaluation["environment_frames"] == int(last["environment_frames"])

    (film,) = (tmp_path / "videos").iterdir()
    assert film.suffix == ".mp4"
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    (image,) = events.Images("video/game")
    assert film.stem == f"{image.step:012d}-CartPole-v0"
    assert image.encoded_image_string.startswith(b"GIF89a")
    assert image.height <= 160 < image.width
    assert list((tmp_path / "wandb").rglob("files/media/videos/video/*.mp4"))
