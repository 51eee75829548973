"""Converts all images to uint8 [H, W, C]: bool and float images, channels first, and stacks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from gymnasium.spaces import Box

from impala_tf.environments.results import BrokenEnvironmentError

NO_BOUND = 1e30
"""Bounds of this size or more count as infinite, such as np.finfo(np.float32).max."""
_WHITE = 255


def as_image(
    space: Box, name: str = "observation"
) -> tuple[Box, Callable[[np.ndarray], np.ndarray]] | None:
    """Returns the space of uint8 images [H, W, C] or [H, W], and the conversion to it.

    Args:
      space: observations with two (uint8 only), three or four dimensions. Four are a stack of
        frames [K, H, W, C], such as Gymnasium's FrameStackObservation makes; the channels of all
        frames become the image's channels. [N, N, C] has its channels last, and [C, N, N] first;
        of other images, the first or the last dimension, whichever is shorter, is the channels.
        Numbers that are not uint8 are scaled from their bounds to 0..255.
      name: of the observation or its part, for errors.

    Returns:
      (the space, the conversion); None if `space` is not one of images. The conversion raises
      BrokenEnvironmentError if an image has NaN.

    Raises:
      ValueError: numbers that are not uint8 have no bounds below NO_BOUND. The message describes
        this.
    """
    if len(space.shape) == 2 and space.dtype == np.uint8:
        return space, lambda image: image
    if len(space.shape) not in (3, 4):
        return None
    order = _order(space.shape)
    scale = _scale(space, name)
    arranged = _merged(np.empty(space.shape, np.uint8).transpose(order)).shape
    if arranged == space.shape and space.dtype == np.uint8:
        return space, lambda image: image
    return Box(0, _WHITE, arranged, np.uint8), lambda image: np.ascontiguousarray(
        _merged(scale(np.asarray(image)).transpose(order))
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


def _merged(image: np.ndarray) -> np.ndarray:
    """Reshapes [H, W, K, C] to [H, W, K * C]; [H, W, C] is unchanged."""
    return image.reshape(*image.shape[:2], -1)


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
        if may_be_nan and math.isnan(shades.sum()):  # as uint8, NaN would be black
            place = np.argwhere(np.isnan(shades))[0].tolist()
            raise BrokenEnvironmentError(f"{name} is NaN at {place}")
        return shades.astype(np.uint8)

    return to_shades
