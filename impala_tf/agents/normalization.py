"""--observation_normalization: what an agent's torso sees observations through."""

from __future__ import annotations

import sonnet as snt
import tensorflow as tf

_LIMIT = 5.0  # in standard deviations
# Added to variances, of images in units of their whole range: 1e-5 is 0.8 shades of grey.
_EPSILON = 1e-5


class ObservationNormalizer(snt.Module):
    """clip((observation - mean) / standard deviation, -5, 5), element by element.

    Mean and standard deviation are variables that are not trained: the learner estimates them (see
    `learner.statistics`) and sends them to actors with the parameters. Before that, images are
    scaled to [0, 1] and vectors stay as they are.

    Args:
      shape: an observation's shape.
      dtype: "uint8" or "float32".
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, name: str | None = None) -> None:
        super().__init__(name=name)
        self._unit = 255.0 if dtype == "uint8" else 1.0
        self.mean = tf.Variable(tf.zeros(shape), trainable=False, name="mean")
        self.inverse_std = tf.Variable(
            tf.fill(shape, 1.0 / self._unit), trainable=False, name="inverse_std"
        )

    def __call__(self, observations: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Maps observations [M, *shape] to floats of `dtype`, same shape."""
        return _normalized(observations, self.mean, self.inverse_std, dtype)

    def set(self, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Changes the statistics; float32 [*shape], in units of the observation."""
        self.mean.assign(mean)
        self.inverse_std.assign(tf.math.rsqrt(variance + _EPSILON * self._unit**2))


@tf.function(jit_compile=True, autograph=False)  # one pass over the observations instead of four
def _normalized(
    observations: tf.Tensor, mean: tf.Tensor, inverse_std: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
    normalized = (tf.cast(observations, tf.float32) - mean) * inverse_std
    return tf.cast(tf.clip_by_value(normalized, -_LIMIT, _LIMIT), dtype)
