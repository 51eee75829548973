"""Converts between Gymnasium's spaces and an agent's observations and actions.

An agent's observations are images, vectors and texts, or a dictionary of these. `Simplify` converts
all others when an environment is made. So vector environments have only `Box` spaces and
dictionaries of them, with uint8 images whose channels are last.
"""

from __future__ import annotations

import contextlib
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector import VectorEnv

from impala_tf.config import plug_ins
from impala_tf.environments import infos, results
from impala_tf.environments.images import NO_BOUND, as_image
from impala_tf.types import ActionSpec, Kind, ObservationSpec

_log = logging.getLogger("impala_tf.environments")

MAX_WORDS = 32
"""Longer texts are truncated."""
WORD_BUCKETS = 1000
"""Words are hashed to 1 .. WORD_BUCKETS (as in the agent of the IMPALA paper); 0: no word."""
_MAX_ONE_HOT = 100_000
_FAR = 2.0**14
"""From here on, float32 cannot express steps of 0.001."""
_OFFSET_BITS = 12
_MOST_UNIT = 2.0**19  # so that whole numbers of any size stay apart


class Words(Box):
    """The space of hashed words of a text, int32 [MAX_WORDS]."""

    def __init__(self) -> None:
        super().__init__(0, WORD_BUCKETS, (MAX_WORDS,), np.int32)


class Simplify(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Converts observations to the form of `simplified`, and keeps only the numbers in `info`.

    A step may repeat its action, but not past the end of an episode: it then returns the last
    one's observation, flags and info, and the sum of the rewards.

    Vector environments make arrays of the values in `info`, which fails if these change their type.

    The first reset and the first step raise LevelError if their results do not fit, or if the
    level's code raises what wrong results and wrong code raise; later ones are not checked, to save
    time. Images with NaN raise BrokenEnvironmentError at every step, because they would be black
    as uint8.

    Args:
      env: the environment.
      level_name: the level's name, for errors; '': the class of the environment.
      repeats: how often a step repeats its action.
      offsets: those of `offsets_of`.

    Attributes:
      convert: maps an observation of `env` to one of the simple space.

    Raises:
      ValueError: agents cannot see the observations, or cannot choose the actions.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        level_name: str = "",
        repeats: int = 1,
        offsets: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(env)
        self._repeats = repeats
        self.observation_space, self.convert = simplified(env.observation_space, offsets)
        action_spec(env.action_space)
        self._level_name = level_name or type(env.unwrapped).__name__
        self._unchecked = {"reset", "step"}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the environment; see `gymnasium.Env.reset`."""
        # A vector environment that resets only some environments passes {} as options.
        settings: dict[str, Any] = {"seed": seed, "options": options or None}
        if "reset" in self._unchecked:
            observation, info = self._checked("reset", **settings)
        else:
            observation, info = self.env.reset(**settings)
        return self._seen(observation, None), infos.only_numbers(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes an action; see `gymnasium.Env.step`."""
        rewards = 0.0
        for _ in range(self._repeats):
            result = self._checked("step", action) if self._unchecked else self.env.step(action)
            observation, reward, terminated, truncated, info = result
            # With actions of shape (1,), rewards often have it, too; vector environments need
            # numbers.
            rewards += reward if type(reward) is float else float(np.asarray(reward).item())
            if terminated or truncated:
                break
        return (
            self._seen(observation, action),
            rewards,
            bool(terminated),
            bool(truncated),
            infos.only_numbers(info),
        )

    def _checked(self, method: str, *args: Any, **settings: Any) -> Any:
        """Returns the result of `env.reset` or `env.step`, if it fits."""
        try:
            result = getattr(self.env, method)(*args, **settings)
            results.check(method, result, self.env.observation_space)
        except results.LevelError as error:
            raise results.LevelError(f"{self._level_name}: {error}") from None
        except (AssertionError, TypeError, ValueError) as error:
            # Such as a wrapper that unpacks five values where there are four.
            raise results.LevelError(
                f"{self._level_name}: its {method} raised {plug_ins.raised(error)};"
                f" {results.must_return(method)}"
            ) from error
        self._unchecked.discard(method)
        return result

    def _seen(self, observation: Any, action: Any) -> Any:
        try:
            return self.convert(observation)
        except results.BrokenEnvironmentError as error:
            # Not before: to write an array as text takes longer than many levels' steps.
            after = "the reset" if action is None else f"action {action}"
            raise results.BrokenEnvironmentError(
                f"{self._level_name}: {error} after {after}"
            ) from None

    def close(self) -> None:
        """Closes the environment. Errors of the level are only logged, because they do no harm."""
        try:
            self.env.close()
        except (Exception, SystemExit) as error:
            _log.warning("the level's close() raised %s", plug_ins.raised(error))


def simplified(
    space: Space[Any], offsets: Mapping[str, np.ndarray] | None = None
) -> tuple[Space[Any], Callable[[Any], Any]]:
    """Returns the simple form of a space, a `Box` or a flat `Dict` of `Box`, and the conversion.

    Args:
      space: a level's observations.
      offsets: those of `offsets_of`.

    Raises:
      ValueError: agents cannot see the space; the message describes why.
    """
    if not isinstance(space, (Dict, Tuple)):
        return _simplified_part(space, "observation", (offsets or {}).get(""))
    names = [name for name, _, _ in named_parts(space)]
    if not names:
        raise ValueError(f"has observations {space}, which hold nothing to see")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"has two parts of observations that would be called '{twice[0]}'")
    simple = {
        name: _simplified_part(part, f"observation.{name}", (offsets or {}).get(name))
        for name, part, _ in named_parts(space)
    }
    return Dict({name: box for name, (box, _) in simple.items()}), lambda observation: {
        name: simple[name][1](value) for name, _, value in named_parts(space, observation)
    }


def offsets_of(
    env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any],
) -> dict[str, np.ndarray]:
    """Returns {part: what to subtract, float64 or int64, before its numbers become float32}.

    That is for numbers that would lose digits which matter, such as metres of a map, or seconds
    since 1970. Their first values tell; they are rounded, so that all processes find the same.
    """
    is_vector = isinstance(env, VectorEnv)
    space = env.single_observation_space if isinstance(env, VectorEnv) else env.observation_space
    found: dict[str, np.ndarray] = {}
    if not any(_is_lossy(part) for _, part, _ in named_parts(space)):
        return {}
    with contextlib.suppress(Exception, SystemExit):  # what is wrong is said where it is played
        for name, part, value in named_parts(space, env.reset(seed=0)[0]):
            if _is_lossy(part):
                kind = np.int64 if np.issubdtype(part.dtype, np.integer) else np.float64
                exact = np.asarray(value[0] if is_vector else value, kind)
                near = np.nan_to_num(exact.astype(np.float64), posinf=0, neginf=0)
                far = np.where(np.abs(near) >= _FAR, near, 0)
                unit = np.minimum(np.ldexp(1.0, np.frexp(far)[1] - _OFFSET_BITS), _MOST_UNIT)
                found[name] = (np.round(far / unit) * unit).astype(kind)
    return {name: offset for name, offset in found.items() if offset.any()}


def _is_lossy(part: Space[Any]) -> bool:
    is_vector = isinstance(part, Box) and len(part.shape) < 3
    return is_vector and not np.can_cast(part.dtype, np.float32)


def observation_spec(space: Space[Any]) -> ObservationSpec | dict[str, ObservationSpec]:
    """Describes a simple space. Raises ValueError as `simplified` does."""
    if isinstance(space, Dict):
        return {name: _part_spec(part) for name, part in space.spaces.items()}
    return _part_spec(space)


def kind_of(observation: ObservationSpec | dict[str, ObservationSpec]) -> Kind:
    """Returns "image" if any part of an observation is an image, else "vector"."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return "image" if any(part.kind == "image" for part in parts) else "vector"


def action_spec(space: Space[Any]) -> ActionSpec:
    """Describes an action space. Raises ValueError, with a description, if it is not supported."""
    if isinstance(space, Discrete):
        return ActionSpec("discrete", (int(space.n),))
    if isinstance(space, MultiDiscrete):
        return ActionSpec("multi_discrete", tuple(int(n) for n in space.nvec.flat))
    if isinstance(space, MultiBinary):
        return ActionSpec("multi_discrete", (2,) * int(np.prod(space.shape)))
    if 0 in (space.shape or ()):
        raise ValueError(f"has actions {space}, which hold no number to choose")
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return ActionSpec("continuous", (int(np.prod(space.shape)),))
    raise ValueError(
        f"has actions {space}; only Discrete, MultiDiscrete, MultiBinary and Box of floats are"
        " supported"
    )


def agent_space(actions: ActionSpec) -> Space[Any]:
    """Returns the space of an agent's actions, for which `action_converter` changes nothing."""
    if actions.kind == "discrete":
        return Discrete(actions.sizes[0])
    if actions.kind == "multi_discrete":
        return MultiDiscrete(list(actions.sizes), np.int32)
    return Box(-np.inf, np.inf, actions.shape, np.float32)


def action_converter(space: Space[Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the conversion of an agent's actions [N, *ActionSpec.shape] to those of a space.

    -1 and 1 become the bounds of a number that has both.
    """
    if isinstance(space, Discrete):
        return lambda actions: actions + space.start
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        shape, start = space.shape, getattr(space, "start", 0)
        return lambda actions: (actions.reshape(-1, *shape) + start).astype(space.dtype)
    assert isinstance(space, Box)
    # In float64: rounded to float32, a bound may be outside the space.
    low, high, center, half = bounds(space)

    def scale(actions: np.ndarray) -> np.ndarray:
        scaled = np.clip(center + half * actions.astype(np.float64), low, high)
        return scaled.reshape(-1, *space.shape).astype(space.dtype)

    return scale


def observation_converter(space: Space[Any]) -> Callable[[Any], Any]:
    """Returns the conversion of a batch of observations of a simple space to what agents see.

    Vectors become flat float32, and images without a channel axis get one. Other images and texts
    are unchanged.
    """
    if isinstance(space, Dict):
        parts = {name: observation_converter(part) for name, part in space.spaces.items()}
        return lambda batch: {name: convert(batch[name]) for name, convert in parts.items()}
    spec = _part_spec(space)
    if spec.kind == "vector":
        return lambda batch: batch.reshape(len(batch), -1).astype(np.float32, copy=False)
    return lambda batch: batch.reshape(len(batch), *spec.shape)


def seen(space: Space[Any]) -> Space[Any]:
    """Returns the space of the results of `observation_converter`."""
    if isinstance(space, Dict):
        return Dict({name: seen(part) for name, part in space.spaces.items()})
    spec = _part_spec(space)
    if spec.kind == "text":
        return Words()
    low, high = (0, 255) if spec.kind == "image" else (-np.inf, np.inf)
    return Box(low, high, spec.shape, np.dtype(spec.dtype).type)


def hash_words(text: str) -> np.ndarray:
    """Hashes the words of a text to 1..WORD_BUCKETS, int32 [MAX_WORDS]; 0 after the last word."""
    words = re.findall(r"\w+", text.lower())[:MAX_WORDS]
    hashed = np.zeros(MAX_WORDS, np.int32)
    hashed[: len(words)] = [1 + zlib.crc32(word.encode()) % WORD_BUCKETS for word in words]
    return hashed


def bounds(space: Box) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns minimum, maximum, centre and half width of each number of an action; float64 [D].

    Numbers without two finite bounds have centre 0 and half width 1, so they are not scaled. Bounds
    like np.finfo(np.float32).max count as infinite.
    """
    limits: Any = np.finfo(str(space.dtype))
    low, high = (
        np.clip(bound.ravel().astype(np.float64), limits.min, limits.max)
        for bound in (space.low, space.high)
    )
    bounded = np.maximum(np.abs(low), np.abs(high)) < NO_BOUND
    bounded &= np.isfinite(space.low).ravel() & np.isfinite(space.high).ravel()
    finite_low, finite_high = np.where(bounded, low, -1), np.where(bounded, high, 1)
    return low, high, (finite_low + finite_high) / 2, (finite_high - finite_low) / 2


def named_parts(
    space: Space[Any], value: Any = None, path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, space, value) for all parts; a nested part is named "outer.inner".

    A space without parts is its only part, and its path is ''.
    """
    if not isinstance(space, (Dict, Tuple)):
        yield path, space, value
        return
    items = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
    for key, part in items:
        inner = None if value is None else value[key]
        yield from named_parts(part, inner, f"{path}.{key}" if path else str(key))


def _simplified_part(
    space: Space[Any], name: str = "observation", offset: np.ndarray | None = None
) -> tuple[Box, Callable[[Any], np.ndarray]]:
    if offset is not None:
        nearer = Box(-np.inf, np.inf, offset.shape, np.float32)
        return nearer, lambda observation: np.asarray(
            np.asarray(observation, offset.dtype) - offset, np.float32
        )
    if isinstance(space, Box):
        simple, convert = as_image(space, name) or (space, lambda observation: observation)
        _part_spec(simple)
        return simple, convert
    if _is_text(space):
        return Words(), hash_words
    if isinstance(space, (Discrete, MultiBinary, MultiDiscrete)):
        size = flatdim(space)
        if size <= _MAX_ONE_HOT:
            one_hot = Box(0, 1, (size,), np.float32)
            return one_hot, lambda observation: np.asarray(flatten(space, observation), np.float32)
    raise ValueError(_not_seen(space))


def _part_spec(space: Space[Any]) -> ObservationSpec:
    if isinstance(space, Words):
        return ObservationSpec("text", space.shape)
    if isinstance(space, Box) and 0 in space.shape:
        raise ValueError(f"has observations {space}, which hold no number to see")
    if isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3):
        height, width, channels = (*space.shape, 1)[:3]
        return ObservationSpec("image", (height, width, channels))
    if isinstance(space, Box) and len(space.shape) <= 2:
        return ObservationSpec("vector", (int(np.prod(space.shape)),))
    raise ValueError(_not_seen(space))


def _is_text(space: Space[Any]) -> bool:
    """Returns whether observations are strings. MiniGrid has its own space for these."""
    return space.dtype is not None and space.dtype.kind == "U"


def _not_seen(space: Space[Any]) -> str:
    return (
        f"has observations {space}; only images ([H, W, C], [C, H, W], or stacks of them), vectors,"
        " numbers of choices, one text, and dictionaries of these, are supported"
    )
