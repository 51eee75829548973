"""--eval_every and --video_every: what one process beside a run plays, and what becomes of it."""

from __future__ import annotations

import csv
import json
import logging
import os
import signal
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
from tests.helpers.runs import rows
from tests.helpers.samples import vector_spec
from tests.helpers.waiting import wait_until

# Plays with the "checkpoint" that it finds in a file: games, a video, or both, as its flags say.
PLAYS = """
import json, os, pathlib, sys, time
print(os.nice(0))
run = pathlib.Path(sys.argv[1])
flags = json.loads((run / "processes" / "evaluator-run.json").read_text())["flags"]
due = {name for name, value in flags.items() if value}
result = dict(environment_frames=int((run / "newest").read_text()))
if "eval_every" in due:
    row = dict(level_name="L", return_mean=7.0, episodes=3, played="other seeds", protocol="P")
    result |= dict(rows=[row], notes=["games were cut"])
if "video_every" in due:
    (run / "videos").mkdir(exist_ok=True)
    video, gif = run / "videos" / "1.mp4", run / "videos" / ".1.gif"
    video.write_text("film"), gif.write_text("gif")
    result |= dict(video=str(video), gif=str(gif))
(run / "processes" / "evaluator.json").write_text(json.dumps(result))
"""
FAILS = "print('no display'); raise SystemExit(3)"
GAMES_THEN_FAILS = f"{PLAYS}{FAILS}"
HANGS = "import time; time.sleep(600)"
HALF = """
import pathlib, sys, time
videos = pathlib.Path(sys.argv[1]) / "videos"
videos.mkdir()
(videos / ".half.mp4").write_text("x")
time.sleep(600)
"""


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


def test_games_and_videos_come_when_they_are_due(train: Callable[..., Training]) -> None:
    """In one process, and each of them no more often than its flag says."""
    training = train(PLAYS, eval_every=1000, video_every=1000)
    training.reach(500)
    assert training.evaluator.process is None
    training.reach(1100)
    training.wait()
    (both,) = training.found
    assert (both.environment_frames, both.rows[0]["return_mean"]) == (1100, 7.0)
    assert Path(both.video).read_text() == "film"
    assert not Path(both.gif).exists()  # TensorBoard has it by now
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


@pytest.mark.parametrize("due", [True, False])
def test_a_run_that_is_stopped_waits_for_no_game(train: Callable[..., Training], due: bool) -> None:
    """Ctrl-C would seem to hang."""
    training = train(HANGS)
    training.reach(500, 1100 if due else 900)
    process = training.evaluator.process
    assert (process is not None) == due
    training.evaluator.close(lambda: False)
    assert not training.found
    assert process is None or not process.is_alive()
    assert not training.evaluator.awaits_games


def test_a_last_evaluation_that_takes_too_long_is_not_lost_silently(
    train: Callable[..., Training], caplog: pytest.LogCaptureFixture
) -> None:
    """The newest figure would be taken for that of the end."""
    training = train(HANGS)
    training.reach(500, 900)
    training.evaluator.longest_end_s = 0.5
    training.evaluator.close(lambda: True)
    assert "the last one was not complete 0 minutes after training" in caplog.text


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


def test_games_are_kept_if_only_the_video_fails(train: Callable[..., Training]) -> None:
    training = train(GAMES_THEN_FAILS)
    training.reach(500, 1100)
    training.wait()
    assert training.found[0].rows


def test_the_end_of_a_run_leaves_neither_a_process_nor_half_a_file(
    train: Callable[..., Training],
) -> None:
    training = train(HALF, video_every=1000)
    training.reach(500, 1100)
    half = training.logdir.videos / ".half.mp4"
    wait_until(half.exists)
    (half.parent / ".ipynb_checkpoints").mkdir()
    process = training.evaluator.process
    training.evaluator.close()
    assert process is not None and not process.is_alive()
    assert not half.exists()


def test_a_level_that_cannot_be_drawn_is_refused_before_training() -> None:
    for name in ("FrozenLake-v1", f"{WORLDS}:Scripted-v0"):
        config = configs.replace(Config(), video_every=1000, level_name=name)
        spec = suites.spec(config.environment)
        if name == "FrozenLake-v1":
            evaluator.check(config, spec)
            continue
        with pytest.raises(ConfigError, match=f"^--level_name={name}: .*render"):
            evaluator.check(config, spec)


def evaluations(logdir: Path) -> list[dict[str, str]]:
    with (logdir / "evaluation.csv").open() as file:
        return list(csv.DictReader(file))


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


def test_a_run_makes_videos_for_its_folder_tensorboard_and_wandb(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logdir = tmp_path / "run"
    run = start(
        "--level_name=CartPole-v1", "--num_actors=1", f"--logdir={logdir}",
        "--video_every=10_000", "--checkpoint_interval_s=2", "--metrics_interval_s=1",
        "--total_environment_frames=100_000_000", "--track=wandb",
        environment={"WANDB_MODE": "offline"},
    )  # fmt: skip
    log = logdir / "processes" / "learner-0.log"
    run.wait_until(lambda: log.exists() and "video: " in log.read_text())
    run.process.send_signal(signal.SIGINT)
    code, out, err = run.wait()
    assert code == 0, err + out
    assert not run.alive()
    films = sorted((logdir / "videos").glob("*.mp4"))
    assert films
    assert not list((logdir / "videos").glob(".*"))
    events = EventAccumulator(str(logdir / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    images = events.Images("video/game")
    assert [f"{image.step:012d}" for image in images] == [film.stem for film in films]
    assert images[0].encoded_image_string.startswith(b"GIF89a")
    assert images[0].height <= 160 < images[0].width
    assert list((logdir / "wandb").rglob("files/media/videos/video/*.mp4"))
    assert rows(logdir)[-1]["environment_frames"]


def test_a_killed_learner_takes_its_evaluator_along(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Nothing else would end it: a game may last for minutes."""
    run = start(
        "--level_name=CartPole-v1", "--num_actors=1", f"--logdir={tmp_path / 'run'}",
        "--video_every=1000", "--checkpoint_interval_s=1", "--metrics_interval_s=1",
        "--total_environment_frames=100_000_000",
    )  # fmt: skip
    process = run.pid_of("--job_name=evaluator")
    os.kill(run.pid_of("--job_name=learner"), signal.SIGKILL)
    wait_until(lambda: process not in run.alive())
