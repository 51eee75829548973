"""One environment with pictures, for videos of an agent."""

from __future__ import annotations

import gymnasium
import numpy as np

from impala_tf.config import ConfigError, EnvironmentConfig
from impala_tf.environments import extras, suites
from impala_tf.environments.batched import BatchedEnvironment

_USUAL_FPS = 30


class RenderedGame:
    """An environment to play, and its picture as a person would see it.

    Attributes:
      environment: N = 1. On Atari, the same game that `suites.make` makes from the same seed.
      fps: agent steps per second at the speed that people play at.

    Raises:
      ConfigError: the level cannot be made (see `suites.spec`) or cannot be rendered.
    """

    def __init__(self, env: EnvironmentConfig, seed: int, index: int = 0) -> None:
        """`index`: which level, if `env` lists several."""
        self._level_name = suites.levels(env)[index].level_name
        self._vector = suites.make_rendered(env, seed, index)
        self.environment = BatchedEnvironment(self._vector)
        repeats = suites.spec(env).frames_per_step
        self.fps: float = self._vector.metadata.get("render_fps", _USUAL_FPS) / repeats

    def frame(self) -> np.ndarray:
        """Returns the picture of the last step, uint8 [H, W, 3].

        Raises:
          ConfigError: a package that draws the level is not installed.
        """
        try:
            (picture,) = self._vector.render() or ()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            line = extras.explained(self._level_name, error)
            if line is None:
                raise
            raise ConfigError(line) from error
        return np.asarray(picture)

    def close(self) -> None:
        """Closes the environment."""
        self.environment.close()
