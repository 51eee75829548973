"""What agents see of Gymnasium's observations, and how their actions become an environment's.

An agent's observations are images (uint8 [H, W, C]), vectors (float32 [D]) and texts (int32
[words]), or a dictionary of these.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatdim, flatten

from impala_tf.types import ActionSpec, EnvironmentSpec, Kind, ObservationSpec

MAX_WORDS = 32
"""Longer texts are truncated."""
WORD_BUCKETS = 1000
"""Words are hashed to 1 .. WORD_BUCKETS (as in the agent of the IMPALA paper); 0: no word."""
NO_BOUND = 1e30
"""Bounds of this size or more count as infinite, such as np.finfo(np.float32).max."""
_WHITE = 255
_MAX_ONE_HOT = 100_000
_FAR = 2.0**14
"""From here on, float32 cannot express steps of 0.001."""
_OFFSET_BITS = 12
_MOST_UNIT = 2.0**19  # so that whole numbers of any size stay apart

Observation = ObservationSpec | dict[str, ObservationSpec]
Convert = Callable[[Any], Any]


def view(space: Space[Any], offsets: Mapping[str, Any]) -> tuple[Observation, Convert]:
    """Returns what agents see of a level's observations, and the conversion of one observation.

    Vectors keep their dtype, because a vector environment converts many at once. The conversion of
    an image raises FloatingPointError if it has NaN.

    Args:
      space: the level's observations. Nested parts get names like "outer.inner".
      offsets: `EnvironmentSpec.offsets`.

    Raises:
      ValueError: agents cannot see the space; the message describes why.
    """
    if not isinstance(space, (Dict, Tuple)):
        return _part_view(space, "observation", offsets.get(""))
    names = [name for name, _, _ in named_parts(space)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"has two parts of observations that would be called '{twice[0]}'")
    views = {
        name: _part_view(part, f"observation.{name}", offsets.get(name))
        for name, part, _ in named_parts(space)
    }
    return {name: spec for name, (spec, _) in views.items()}, lambda observation: {
        name: views[name][1](value) for name, _, value in named_parts(space, observation)
    }


def space_of(spec: EnvironmentSpec) -> Space[Any]:
    """Returns the space of one environment's observations, as `observations.py` lays them out."""

    def part(seen: ObservationSpec) -> Box:
        high = {"image": _WHITE, "vector": np.inf, "text": WORD_BUCKETS}[seen.kind]
        low = -np.inf if seen.kind == "vector" else 0
        height_last = (seen.shape[-1], *seen.shape[:-1])
        shape = height_last if spec.stacked_frames else seen.shape
        return Box(low, high, shape, np.dtype(seen.dtype).type)

    if isinstance(spec.observation, dict):
        return Dict({name: part(seen) for name, seen in spec.observation.items()})
    return part(spec.observation)


def find_offsets(space: Space[Any], first: Any) -> dict[str, Any]:
    """Returns {part: list of what to subtract before its numbers become float32}.

    That is for numbers that would lose digits which matter, such as metres of a map, or seconds
    since 1970. Their first values tell.

    Args:
      space: the level's observations.
      first: one of them.
    """
    found: dict[str, Any] = {}
    for name, part, value in named_parts(space, first):
        if (
            isinstance(part, Box)
            and len(part.shape) < 3
            and not np.can_cast(part.dtype, np.float32)
        ):
            kind = np.int64 if np.issubdtype(part.dtype, np.integer) else np.float64
            exact = np.asarray(value, kind)
            near = np.nan_to_num(exact.astype(np.float64), posinf=0, neginf=0)
            far = np.where(np.abs(near) >= _FAR, near, 0)
            unit = np.minimum(np.ldexp(1.0, np.frexp(far)[1] - _OFFSET_BITS), _MOST_UNIT)
            found[name] = (np.round(far / unit) * unit).astype(kind)
    return {name: offset.tolist() for name, offset in found.items() if offset.any()}


def kind_of(observation: Observation) -> Kind:
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

    -1 and 1 become the bounds of a number that has both. Numbers without two finite bounds are not
    scaled. Bounds like np.finfo(np.float32).max count as infinite.
    """
    if isinstance(space, Discrete):
        return lambda actions: actions + space.start
    if isinstance(space, (MultiDiscrete, MultiBinary)):
        shape, start = space.shape, getattr(space, "start", 0)
        return lambda actions: (actions.reshape(-1, *shape) + start).astype(space.dtype)
    assert isinstance(space, Box)
    # In float64: rounded to float32, a bound may be outside the space.
    limits: Any = np.finfo(str(space.dtype))
    low, high = (
        np.clip(bound.ravel().astype(np.float64), limits.min, limits.max)
        for bound in (space.low, space.high)
    )
    bounded = np.maximum(np.abs(low), np.abs(high)) < NO_BOUND
    bounded &= np.isfinite(space.low).ravel() & np.isfinite(space.high).ravel()
    finite_low, finite_high = np.where(bounded, low, -1), np.where(bounded, high, 1)
    center, half = (finite_low + finite_high) / 2, (finite_high - finite_low) / 2

    def scale(actions: np.ndarray) -> np.ndarray:
        scaled = np.clip(center + half * actions.astype(np.float64), low, high)
        return scaled.reshape(-1, *space.shape).astype(space.dtype)

    return scale


def hash_words(text: str) -> np.ndarray:
    """Hashes the words of a text to 1..WORD_BUCKETS, int32 [MAX_WORDS]; 0 after the last word."""
    words = re.findall(r"\w+", text.lower())[:MAX_WORDS]
    hashed = np.zeros(MAX_WORDS, np.int32)
    hashed[: len(words)] = [1 + zlib.crc32(word.encode()) % WORD_BUCKETS for word in words]
    return hashed


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


def _part_view(space: Space[Any], name: str, offset: Any) -> tuple[ObservationSpec, Convert]:
    if isinstance(space, Box) and 0 in space.shape:
        raise ValueError(f"has observations {space}, which hold no number to see")
    if isinstance(space, Box) and (image := _image_view(space, name)):
        return image
    if isinstance(space, Box) and len(space.shape) <= 2:
        vector = ObservationSpec("vector", (int(np.prod(space.shape)),))
        if offset is not None:
            minus = np.array(offset)
            return vector, lambda value: np.ravel(np.asarray(value, minus.dtype) - minus)
        if len(space.shape) == 1:
            return vector, lambda value: value
        return vector, lambda value: np.reshape(value, -1)
    if space.dtype is not None and space.dtype.kind == "U":  # MiniGrid has a space of its own
        return ObservationSpec("text", (MAX_WORDS,)), hash_words
    is_choice = isinstance(space, (Discrete, MultiBinary, MultiDiscrete))
    if is_choice and (size := flatdim(space)) <= _MAX_ONE_HOT:
        one_hot = ObservationSpec("vector", (size,))
        return one_hot, lambda value: np.asarray(flatten(space, value), np.float32)
    raise ValueError(
        f"has observations {space}; only images ([H, W, C], [C, H, W], or stacks of them), vectors,"
        " numbers of choices, one text, and dictionaries of these, are supported"
    )


def _image_view(space: Box, name: str) -> tuple[ObservationSpec, Convert] | None:
    """Returns images [H, W, C], and the conversion to them; None if these are no images.

    Images have two (uint8 only), three or four dimensions. Four are a stack of frames [K, H, W, C],
    such as Gymnasium's FrameStackObservation makes; the channels of all frames become the image's.
    [N, N, C] has its channels last, and [C, N, N] first; of other images, the first or the last
    dimension, whichever is shorter, is the channels. Numbers that are not uint8 are scaled from
    their bounds to 0..255.
    """
    shape = space.shape
    if len(shape) == 2 and space.dtype == np.uint8:
        return ObservationSpec("image", (*shape, 1)), lambda image: np.reshape(image, (*shape, 1))
    if len(shape) not in (3, 4):
        return None
    order = _order(shape)
    height, width, *channels = (shape[axis] for axis in order)
    seen = ObservationSpec("image", (height, width, math.prod(channels)))
    if seen.shape == shape and space.dtype == np.uint8:
        return seen, lambda image: image
    scale = _scale(space, name)
    return seen, lambda image: np.ascontiguousarray(
        scale(np.asarray(image)).transpose(order).reshape(seen.shape)
    )


def _order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the order of axes that makes an image [H, W, C], and a stack [H, W, K, C]."""
    stack, image = tuple(range(len(shape) - 3)), tuple(range(len(shape) - 3, len(shape)))
    first, second, last = shape[-3:]
    # Squares tell more than lengths, because a board may have more channels than rows: MiniGrid's
    # one-hot is [7, 7, 20], and AlphaZero's planes of chess are [119, 8, 8].
    if first != second and (first < last or second == last):  # channels first
        image = (*image[1:], image[0])
    return (*image[:2], *stack, image[2])


def _scale(space: Box, name: str) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that maps a space's numbers to uint8."""
    if space.dtype == np.uint8:
        return lambda image: image
    if space.dtype == np.bool_:
        return lambda image: image.astype(np.uint8) * np.uint8(_WHITE)
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    if not space.is_bounded() or np.maximum(np.abs(low), np.abs(high)).max() >= NO_BOUND:
        raise ValueError(
            f"has images of {space.dtype} without bounds; give their space the lowest and the"
            " highest number that occur as `low` and `high`, which become black and white"
            f" ({NO_BOUND:g} and more count as no bound)"
        )
    if low.min() == low.max() and high.min() == high.max():
        low, high = low.min(), high.max()  # scalars are faster than arrays
    unit = _WHITE / np.maximum(high - low, 1e-8)
    may_be_nan = space.dtype is not None and space.dtype.kind == "f"

    def to_shades(image: np.ndarray) -> np.ndarray:
        shades = np.clip((image - low) * unit + 0.5, 0, _WHITE)
        if may_be_nan and math.isnan(shades.sum()):
            where = np.argwhere(np.isnan(shades))[0].tolist()
            raise FloatingPointError(f"{name} is NaN at {where}")  # it would be black
        return shades.astype(np.uint8)

    return to_shades
