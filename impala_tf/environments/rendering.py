"""One environment to play and to look at, for videos of an agent."""

from __future__ import annotations

import numpy as np

from impala_tf.config import EnvironmentConfig
from impala_tf.environments import factory
from impala_tf.environments.stream import EnvStream

_USUAL_FPS = 30


class RenderedGame:
    """A stream of one environment, and what it looks like to a human.

    Attributes:
      stream: the environment to play, N = 1. It is the very one that `factory.make` would have made
        from the same seed (Atari), or one of the same level (others).
      fps: agent steps a second at which people would see the game.

    Raises:
      ConfigError: the level cannot be made (see `factory.spec`) or cannot be rendered.
    """

    def __init__(self, env: EnvironmentConfig, seed: int) -> None:
        self._vector = factory.make_rendered(env, seed)
        self.stream = EnvStream(self._vector)
        repeats = factory.spec(env).frames_per_step
        self.fps: float = self._vector.metadata.get("render_fps", _USUAL_FPS) / repeats

    def frame(self) -> np.ndarray:
        """Returns the picture of the step that the stream returned last, uint8 [H, W, 3]."""
        (picture,) = self._vector.render() or ()
        return np.asarray(picture)

    def close(self) -> None:
        """Closes the environment."""
        self.stream.close()
