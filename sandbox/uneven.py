"""A level for measurements: a Pong whose games start slowly and unevenly.

`--level_name=sandbox.uneven:UnevenPong-v0`. Importing this module registers it.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np

gymnasium.register_envs(ale_py)

_GAME_STEPS = 200  # so that there are many starts
_MOST_FRAMES = 4_000  # of the emulator, before a game begins: about a second at most


class UnevenPong(gymnasium.Wrapper[np.ndarray, int, np.ndarray, int]):
    """Every reset runs the emulator for up to 4,000 frames; a game is cut after 200 steps.

    Images uint8 [84, 84, 1], grey.
    """

    def __init__(self, render_mode: str | None = None) -> None:
        plain = gymnasium.make("PongNoFrameskip-v4", render_mode=render_mode)
        games = gymnasium.wrappers.AtariPreprocessing(
            plain, noop_max=0, frame_skip=4, grayscale_newaxis=True
        )
        super().__init__(gymnasium.wrappers.TimeLimit(games, _GAME_STEPS))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Starts a game, slowly."""
        first = super().reset(seed=seed, options=options)
        for _ in range(int(self.unwrapped.np_random.integers(1, _MOST_FRAMES))):
            *_, terminated, truncated, _ = self.unwrapped.step(0)
            if terminated or truncated:
                break
        return super().reset(options=options) if terminated or truncated else first


gymnasium.register("UnevenPong-v0", entry_point="sandbox.uneven:UnevenPong")
