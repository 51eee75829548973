"""Rendered games: a video shows what the agent played."""

from __future__ import annotations

import ctypes.util
import os

import cv2
import numpy as np
import pytest

from impala_tf.config import ConfigError
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


def test_a_level_that_cannot_be_rendered_refuses_video(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the game is played, not after it."""
    with pytest.raises(ConfigError, match=f"^--level_name={BROKEN_WORLDS}:Blind-v0: has no"):
        rendered(level(f"{BROKEN_WORLDS}:Blind-v0"), seed=1)
    monkeypatch.setattr(Pictures, "render", lambda self: None)
    with pytest.raises(ConfigError, match="must return a picture, .* returned None"):
        rendered(level(f"{WORLDS}:Pictures-v0"), seed=1).check()


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
        np.testing.assert_array_equal(alone.observation, filmed.observation)
    assert len(game.environment.pop_episodes()) >= 2
    game.close()
