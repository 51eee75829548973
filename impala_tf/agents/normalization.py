"""--observation_normalization: normalises observations before the torso."""

from __future__ import annotations

import functools
from collections.abc import Callable

import sonnet as snt
import tensorflow as tf

_SCREEN = 32
"""Pixels. Images with a shorter side hold codes, not a scene. In MiniGrid, most cells are 1, goal
and lava 8 and 9."""
_SCREEN_LIMIT, _CODES_LIMIT, _VECTOR_LIMIT = 5.0, 20.0, 10.0  # in standard deviations
# Added to variances. The unit of images is their whole range, so theirs is (0.8 grey levels)^2. For
# vectors, it is the one of Gymnasium and Stable-Baselines3.
_IMAGE_EPSILON, _VECTOR_EPSILON = 1e-5, 1e-8


class ObservationNormalizer(snt.Module):
    """clip((observation - mean) / standard deviation, -limit, limit), element by element.

    The limit is 5 for images, 10 for vectors, and 20 for images of codes.

    Mean and standard deviation are variables that are not trained: the learner estimates them (see
    `learner.moments`) and sends them to actors with the parameters. Until then, images are
    scaled to [0, 1] and vectors are unchanged.

    Args:
      shape: an observation's shape.
      dtype: "uint8" or "float32".

    Attributes:
      lasting: whether the statistics cover the whole run. Those of vectors do, because they change
        while a policy learns to reach new places. Pixels stay in their range, and cost more to sum.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__()
        self._unit = 255.0 if dtype == "uint8" else 1.0
        self._limit = _VECTOR_LIMIT
        if dtype == "uint8":
            self._limit = _CODES_LIMIT if min(shape[:2]) < _SCREEN else _SCREEN_LIMIT
        self.lasting = dtype != "uint8"
        self.mean = tf.Variable(tf.zeros(shape), trainable=False, name="mean")
        self.inverse_std = tf.Variable(
            tf.fill(shape, 1.0 / self._unit), trainable=False, name="inverse_std"
        )

    def __call__(self, observations: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Maps observations [M, *shape] to floats of `dtype`, of the same shape."""
        normalized = _compiled(tuple(self.mean.shape))
        return normalized(observations, self.mean, self.inverse_std, self._limit, dtype)

    def set(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Sets the statistics, float32 [*shape], in the observation's units."""
        self.mean.assign(mean)
        epsilon = _VECTOR_EPSILON if self.lasting else _IMAGE_EPSILON * self._unit**2
        self.inverse_std.assign(tf.math.rsqrt(variance + epsilon))


@functools.cache
def _compiled(shape: tuple[int, ...]) -> Callable[..., tf.Tensor]:
    """Returns `_normalized`, compiled to one pass over the observations instead of four.

    Each shape has its own function, because TensorFlow warns if one function is retraced for the
    shapes of several agents. It identifies functions by their code; a partial has none.

    Args:
      shape: an observation's shape.
    """
    partial = functools.partial(_normalized)
    compiled: Callable[..., tf.Tensor] = tf.function(partial, jit_compile=True, autograph=False)
    return compiled


def _normalized(
    observations: tf.Tensor,
    mean: tf.Tensor,
    inverse_std: tf.Tensor,
    limit: float,
    dtype: tf.DType,
) -> tf.Tensor:
    normalized = (tf.cast(observations, tf.float32) - mean) * inverse_std
    return tf.cast(tf.clip_by_value(normalized, -limit, limit), dtype)
