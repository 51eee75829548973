"""Finds images of which agents would see little, because of the bounds of their space."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from impala_tf.environments import spaces
from impala_tf.environments.images import as_image
from impala_tf.environments.results import BrokenEnvironmentError

_STEPS, _PLAY_S = 200, 0.25
_PIXELS = 10_000  # of an image in which different numbers are counted: sorting them takes time
_MOST_NUMBERS = 5_000  # that are told apart
_FEW_SHADES = 8
_CODES = 256
"""So many different integers may be codes, such as glyphs. More are a measure, such as depth."""


def notes(level_name: str, env: gymnasium.Env[Any, Any]) -> list[str]:
    """Plays for a moment with random actions; returns a line for each image that is hard to see.

    Agents see images that are not uint8 as 256 shades between the bounds of their space. A line
    says that an image has numbers outside of its bounds, or that its numbers become too few shades.

    Args:
      level_name: the level's name.
      env: one environment, whose observations are not converted yet. It is not closed.
    """
    looks = {
        name: _Look(name, part)
        for name, part, _ in spaces.named_parts(env.observation_space)
        if isinstance(part, Box) and part.dtype not in (np.uint8, np.bool_) and as_image(part)
    }
    for observation in _played(env) if looks else ():
        for name, _, value in spaces.named_parts(env.observation_space, observation):
            if name in looks:
                looks[name].add(np.asarray(value))
    return [f"{level_name}: {line}" for look in looks.values() if (line := look.problem())]


def _played(env: gymnasium.Env[Any, Any]) -> Iterator[Any]:
    """Yields the observations of a few hundred steps, fewer if they take long."""
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    yield observation
    until_s = time.monotonic() + _PLAY_S
    for _ in range(_STEPS):
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        yield observation
        if time.monotonic() > until_s:
            return
        if terminated or truncated:
            observation, _ = env.reset()
            yield observation


class _Look:
    """The numbers of one image, and the shades that they become."""

    def __init__(self, name: str, space: Box) -> None:
        image = as_image(space)
        assert image is not None
        self._to_shades = image[1]
        self._named = f"image '{name}'" if name else "image"
        self._low, self._high = space.low.astype(np.float64), space.high.astype(np.float64)
        self._is_whole = space.dtype is not None and space.dtype.kind in "iu"
        size = int(np.prod(space.shape))
        self._places = np.random.default_rng(0).permutation(size)[:_PIXELS]
        self._lowest, self._highest = np.inf, -np.inf
        self._is_outside = False
        self._numbers: set[float] = set()
        self._shades = np.zeros(256, np.bool_)

    def add(self, image: np.ndarray) -> None:
        """Looks at one more image."""
        try:
            self._shades[self._to_shades(image).ravel()] = True
        except BrokenEnvironmentError:  # it has NaN; training says so and restarts the level
            return
        self._lowest = min(self._lowest, float(image.min()))
        self._highest = max(self._highest, float(image.max()))
        shade = (self._high - self._low) / 255
        self._is_outside |= bool(
            ((image < self._low - shade) | (image > self._high + shade)).any()
        )  # a number that is rounded past its bound does no harm
        if len(self._numbers) < _MOST_NUMBERS:
            self._numbers |= set(np.unique(image.ravel()[self._places]).tolist())

    def problem(self) -> str:
        """Returns what is wrong and what to do, as a line; '' if nothing is."""
        seen = f"numbers from {self._lowest:g} to {self._highest:g}"
        bounds = f"its space has the bounds {self._low.min():g} to {self._high.max():g}"
        wrapper = "scale it to uint8 in a wrapper (--level_wrappers)"
        if self._is_outside:
            return (
                f"its {self._named} has {seen}, but {bounds}, and agents see what is outside as"
                f" black or white; correct `low` and `high`, or {wrapper}"
            )
        if not self._hides():
            return ""
        shades = np.count_nonzero(self._shades)
        what = f"only {shades} shade{'' if shades == 1 else 's'}"
        codes = "; codes are best one-hot" if self._is_whole else ""
        return (
            f"agents see {what} in its {self._named}, because it has {seen}, but {bounds}; give it"
            f" a tighter `low` and `high`, or {wrapper}{codes}"
        )

    def _hides(self) -> bool:
        """Returns whether far more numbers than shades are told apart."""
        shades, numbers = np.count_nonzero(self._shades), len(self._numbers)
        if self._is_whole and numbers <= _CODES:
            return numbers >= max(8, 2 * shades)
        return shades <= _FEW_SHADES and numbers >= max(8, 4 * shades)
