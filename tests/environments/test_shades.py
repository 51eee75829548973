"""Images of which agents see little, because their space has bounds that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from impala_tf.config import Given
from impala_tf.environments import shades, suites
from impala_tf.processes import local_run
from tests.helpers.games import BROKEN_WORLDS, WORLDS, level

F32, I16 = np.float32, np.int16


class Drawn(gymnasium.Env[Any, Any]):
    """Draws a new image at every step; a game has 20 steps.

    Args:
      space: of the images.
      low, high: numbers are drawn uniformly from low..high.
      spread: if it is given, they are drawn from a normal distribution instead.
    """

    action_space = Discrete(2)

    def __init__(self, space: Box, low: float = 0, high: float = 1, spread: float = 0) -> None:
        self.observation_space = space
        self._low, self._high, self._spread = low, high, spread

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(**kwargs)
        self._left = 20
        return self._drawn(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._drawn(), 0.0, self._left == 0, False, {}

    def _drawn(self) -> np.ndarray:
        space = self.observation_space
        assert space.shape is not None
        if self._spread:
            return self.np_random.normal(0, self._spread, space.shape).astype(space.dtype)
        drawn = self.np_random.uniform(self._low, self._high + (space.dtype == I16), space.shape)
        return drawn.astype(space.dtype)


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            Drawn(Box(-1e6, 1e6, (10, 10, 3), F32), spread=100),
            "Mine: agents see only 2 shades in its image, because it has numbers from -",
        ),
        (
            Drawn(Box(0, 255, (10, 10, 3), F32)),
            "Mine: agents see only 2 shades in its image, because it has numbers from ",
        ),
        (
            Drawn(Box(0, 1, (10, 10, 3), F32), 0, 255),
            "but its space has the bounds 0 to 1, and agents see what is outside as black or white",
        ),
        (
            Drawn(Box(0, 5976, (21, 79, 1), I16), 100, 123),
            "numbers from 100 to 123, but its space has the bounds 0 to 5976; give it a tighter"
            " `low` and `high`, or scale it to uint8 in a wrapper (--level_wrappers); codes are"
            " best one-hot",
        ),
        (Drawn(Box(0, 5976, (21, 79, 1), I16), 0, 120), "agents see only 6 shades in its image"),
        (Drawn(Box(0, 255, (3, 12, 12), F32), 200, 201), "agents see only 2 shades in its image"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value.observation_space),
)
def test_bounds_that_hide_an_image_are_one_line(env: Drawn, line: str) -> None:
    """The agent is blind, and the run looks as if the level could not be learned."""
    (note,) = shades.notes("Mine", env)
    assert line in note
    assert "\n" not in note


@pytest.mark.parametrize(
    "env",
    [
        Drawn(Box(0, 1, (10, 10, 3), F32)),
        Drawn(Box(0, 1, (10, 10, 3), F32), 0, 1.003),  # it is rounded
        Drawn(Box(0, 1, (10, 10, 3), F32), 0.45, 0.55),
        Drawn(Box(0, 255, (10, 10, 3), F32), 0, 255),
        Drawn(Box(-1000, 1000, (10, 10, 3), F32), spread=100),
        Drawn(Box(0, 10_000, (64, 64, 1), I16), 0, 5000),  # depth
        Drawn(Box(0, 300, (21, 79, 1), I16), 0, 200),  # most codes have a shade of their own
        Drawn(Box(0, 255, (10, 10, 3), F32), 7, 7),  # it begins with one colour
        Drawn(Box(0, 255, (10, 10, 3), np.uint8), 0, 2),  # as it is
        Drawn(Box(0, 255, (3,), F32)),
    ],
    ids=lambda env: str(env.observation_space),
)
def test_images_that_agents_see_well_are_not_mentioned(env: Drawn) -> None:
    assert shades.notes("Mine", env) == []


def test_parts_of_observations_are_named() -> None:
    class Parts(Drawn):
        def __init__(self) -> None:
            super().__init__(Box(0, 255, (10, 10, 3), F32))
            self._picture = self.observation_space
            grey = Box(0, 255, (4, 4), np.uint8)
            self.observation_space: Any = Dict({"far": Dict({"eye": self._picture}), "grey": grey})

        def _drawn(self) -> Any:
            picture = self.np_random.uniform(0, 1, (10, 10, 3)).astype(F32)
            return {"far": {"eye": picture}, "grey": np.zeros((4, 4), np.uint8)}

    (note,) = shades.notes("Mine", Parts())
    assert note.startswith("Mine: agents see only 2 shades in its image 'far.eye', because")


def test_levels_are_played_for_a_moment() -> None:
    found = suites.image_notes(level(f"{WORLDS}:FloatPictures-v0", level_kwargs='{"high": 1}'))
    (line,) = found
    assert line.startswith(f"{WORLDS}:FloatPictures-v0: its image has numbers from 0 to 2")
    assert suites.image_notes(level(f"{WORLDS}:FloatPictures-v0")) == []
    own = level(f"{WORLDS}:Pictures", level_kwargs='{"dtype": "float32", "high": 1}')
    (line,) = suites.image_notes(own)
    assert line.startswith(f"{WORLDS}:Pictures: its image has numbers from 0 to 2")


@pytest.mark.parametrize("name", ["NanPictures-v0", "Hanging-v0", "Graph-v0", "NeedsFile-v0"])
def test_levels_that_break_are_left_to_what_trains_on_them(name: str) -> None:
    """Pictures of uint8 are not even played."""
    assert suites.image_notes(level(f"{BROKEN_WORLDS}:{name}")) == []


def test_a_run_says_it_before_it_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    local_run.main(
        Given().replace(
            level_name=f"{WORLDS}:FloatPictures-v0",
            level_kwargs='{"high": 1}',
            logdir=str(tmp_path / "run"),
            dry_run=True,
        )
    )
    assert (
        f"note: {WORLDS}:FloatPictures-v0: its image has numbers from " in capsys.readouterr().out
    )
