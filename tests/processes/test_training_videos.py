"""--video_every: videos while a run trains, which nothing waits for and nothing is left of."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import time
from typing import Any

import gymnasium
import pytest

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError
from impala_tf.logdir import Logdir
from impala_tf.processes import training_videos
from impala_tf.processes.training_videos import TrainingVideos
from tests.helpers.runs import rows
from tests.helpers.waiting import wait_until

CONFIG = configs.replace(Config(), video_every=1000)
MAKES_ONE = """
import json, os, pathlib, sys, time
video, gif = (pathlib.Path(sys.argv[1]) / name for name in (sys.argv[2] + ".mp4", ".gif"))
video.write_text("film"), gif.write_text("gif")
film = dict(video=str(video), gif=str(gif), width=4, height=2, environment_frames=9)
print("video: " + json.dumps(film))
while os.nice(0) == os.getpriority(os.PRIO_PROCESS, os.getppid()) < 19:
    time.sleep(0.1)  # its parent sets it a moment after the start
print("niceness", os.nice(0))
"""
FAILS = "print('no display'); raise SystemExit(3)"
HANGS = "import sys, time; open(sys.argv[1] + '/.half.mp4', 'w').write('x'); time.sleep(600)"


def row(frames):
    return {"environment_frames": frames}


@pytest.fixture
def make(tmp_path):
    """Makes what starts videos, of a script; and the list of what it publishes."""
    made, published = [], []

    def start(script):
        (tmp_path / "run").mkdir(exist_ok=True)
        script_path = tmp_path / "script.py"
        script_path.write_text(script)
        videos = TrainingVideos(
            CONFIG,
            Logdir(tmp_path / "run"),
            lambda film, frames: published.append((film, frames)),
            (sys.executable, str(script_path)),
        )
        made.append(videos)
        videos.on_row(row(500))
        videos.on_checkpoint(tmp_path)
        return videos, published

    yield start
    for videos in made:
        videos.close()


def tell_until(videos, done):
    def told():
        videos.on_row(row(1100))
        return done()

    wait_until(told, poll_s=0.05)


def test_a_video_is_made_once_so_many_frames_have_passed(make, tmp_path):
    videos, published = make(MAKES_ONE)
    assert not (tmp_path / "run" / "videos").exists()  # 500 of 1,000 frames
    videos.on_row(row(1100))
    videos.on_checkpoint(tmp_path)
    tell_until(videos, lambda: published)
    film, frames = published[0]
    assert (film.width, film.height, film.environment_frames, frames) == (4, 2, 9, 1100)
    videos.on_checkpoint(tmp_path)  # 1,100: the next one is due at 2,000
    folder = tmp_path / "run" / "videos"
    assert sorted(path.name for path in folder.iterdir()) == ["0.mp4", "video.log"]
    niceness = (folder / "video.log").read_text().split()[-1]
    assert int(niceness) >= os.nice(0) + 10 or int(niceness) == 19


def test_one_that_fails_is_named_once_and_the_run_goes_on(make, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "impala_tf.learner")
    videos, published = make(FAILS)
    for frames in (1100, 2100):
        videos.on_row(row(frames))
        videos.on_checkpoint(tmp_path)
        time.sleep(0.2)
        tell_until(videos, lambda: videos.process is None)
    assert not published
    (line,) = [record.getMessage() for record in caplog.records]
    assert "--video_every: no video: no display; see" in line


def test_the_end_of_a_run_leaves_neither_a_process_nor_half_a_file(make, tmp_path):
    videos, _ = make(HANGS)
    videos.on_row(row(1100))
    videos.on_checkpoint(tmp_path)
    half = tmp_path / "run" / "videos" / ".half.mp4"
    wait_until(half.exists)
    (half.parent / ".ipynb_checkpoints").mkdir()
    process = videos.process
    videos.close()
    assert process.returncode is not None
    assert not half.exists()


class Blind(gymnasium.Env):
    """A level that cannot be drawn."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)


class WrongReset(gymnasium.Env):
    """A level whose reset returns no observation."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        return None


class Raises(WrongReset):
    """A level whose reset raises."""

    def reset(self, *, seed=None, options=None):
        raise FileNotFoundError("maze.txt")


@pytest.mark.parametrize(
    ("level", "problem"),
    [
        ("FrozenLake-v1", None),
        (f"{__name__}:WrongReset", "reset must return 2 values (observation, info), but returned "),
        (f"{__name__}:Raises", "its reset() raised FileNotFoundError: maze.txt (test_training_vid"),
        (f"{__name__}:Blind", "has no render mode rgb_array, so no video; leave the flag out"),
    ],
)
def test_a_level_that_cannot_be_drawn_is_refused_before_training(level, problem):
    env = dataclasses.replace(CONFIG.environment, level_name=level)
    config = dataclasses.replace(CONFIG, environment=env)
    if problem is None:
        training_videos.check(config)
        return
    with pytest.raises(ConfigError) as caught:
        training_videos.check(config)
    (line,) = caught.value.problems
    assert line.startswith("--video_every: --level_name=")
    assert problem in line


@pytest.mark.long
def test_a_run_makes_videos_for_its_folder_tensorboard_and_wandb(start, tmp_path):
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
    assert list((logdir / "wandb").rglob("files/media/videos/video/*.mp4"))
    assert rows(logdir)[-1]["environment_frames"]


@pytest.mark.long
def test_a_killed_learner_takes_its_video_along(start, tmp_path):
    """Nothing else would end it: a game may last for minutes."""
    run = start(
        "--level_name=CartPole-v1", "--num_actors=1", f"--logdir={tmp_path / 'run'}",
        "--video_every=1000", "--checkpoint_interval_s=1", "--metrics_interval_s=1",
        "--total_environment_frames=100_000_000",
    )  # fmt: skip
    learner = run.pid_of("--job_name=learner")
    run.wait_until(lambda: len(rows(tmp_path / "run")) > 0)
    video = run.pid_of(training_videos.MODULE)
    os.kill(learner, 9)
    wait_until(lambda: video not in run.alive())
    run.process.terminate()  # a learner that fails within its first minute ends the run itself
    run.wait()
    assert not run.alive()
