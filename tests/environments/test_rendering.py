"""Rendered games: a video shows what the agent played."""

from __future__ import annotations

import ctypes.util
import os
from typing import Any

import cv2
import numpy as np
import pytest

from impala_tf.config import ConfigError
from impala_tf.environments import atari
from tests.helpers.games import (
    BROKEN_WORLDS,
    WORLDS,
    actions,
    breakout,
    environment_of,
    level,
    random_steps,
    rendered,
)
from tests.helpers.worlds import Pictures


@pytest.mark.parametrize("screen", [None, ":0"])
def test_mujoco_draws_without_a_screen(monkeypatch: pytest.MonkeyPatch, screen: str | None) -> None:
    """It took a library that needs a screen, and raised that none had been loaded."""
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name == "EGL" else None)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.setenv(name, "")  # so that it is what it was before, afterwards
        monkeypatch.delenv(name)
    if screen:
        monkeypatch.setenv("DISPLAY", screen)
    rendered(level(f"{WORLDS}:Pictures-v0"), seed=1).environment.close()
    assert os.environ.get("MUJOCO_GL") == (None if screen else "egl")


def test_a_frame_shows_the_current_step() -> None:
    """A video of other moments than those that the agent saw would mislead."""
    game = rendered(level(f"{WORLDS}:Pictures-v0"), seed=1)
    assert game.fps == 10
    output = game.environment.reset()
    for _ in range(9):
        np.testing.assert_array_equal(game.frame(), output.observation[0])
        output = game.environment.step(actions(0))
    game.close()


@pytest.mark.parametrize(
    ("fps", "expected"), [(None, 30), (np.float32(10), 10), (np.int64(20), 20), (0, 30), ("x", 30)]
)
def test_a_level_may_say_in_many_ways_how_fast_it_is(
    monkeypatch: pytest.MonkeyPatch, fps: Any, expected: float
) -> None:
    """Encoders take only Python's numbers, and a game would be played in vain."""
    monkeypatch.setitem(Pictures.metadata, "render_fps", fps)
    game = rendered(level(f"{WORLDS}:Pictures-v0"), seed=1)
    game.close()
    assert (game.fps, type(game.fps)) == (expected, float)


def test_a_level_that_cannot_be_rendered_refuses_video() -> None:
    """Before the game is played, not after it."""
    with pytest.raises(ConfigError, match=f"^--level_name={BROKEN_WORLDS}:Blind-v0: has no"):
        rendered(level(f"{BROKEN_WORLDS}:Blind-v0"), seed=1)


def test_a_video_shows_the_game_that_the_agent_plays() -> None:
    """Frames come from a second emulator. It must play the same game, with sticky actions too."""
    env = breakout(repeat_action_probability=0.25, max_episode_frames=500)
    game = rendered(env, seed=5)
    assert game.fps == 15
    played_alone = random_steps(environment_of(env, seed=5), 4, 300)
    played = []
    rng = np.random.default_rng(0)
    output = game.environment.reset()
    for _ in range(301):
        played.append(output)
        screen = game.frame()
        assert (screen.shape, screen.dtype) == ((210, 160, 3), np.uint8)
        # The agent sees the screen in grey.
        grey = cv2.resize(
            cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA
        )
        assert np.abs(grey.astype(int) - output.observation[0, -1]).max() <= 3
        output = game.environment.step(rng.integers(0, 4, 1).astype(np.int32))
    for alone, filmed in zip(played_alone, played, strict=True):
        for ours, theirs in zip(alone, filmed, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert len(game.environment.pop_episodes()) >= 2
    game.close()


def test_two_emulators_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The video would show a game that the agent did not play."""
    twin = atari.Games(breakout(max_episode_frames=44), 1, 1)
    monkeypatch.setattr(atari, "Games", lambda *args, **kwargs: twin)
    environment = rendered(breakout(), seed=1).environment
    with pytest.raises(RuntimeError, match="no longer the game that the agent plays"):
        random_steps(environment, 4, 11)
