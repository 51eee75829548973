"""Gradients in half the bytes, on their way between learners."""

from __future__ import annotations

import tensorflow as tf

# float16 holds 6e-8 to 65,504. An entry is at most as large as the norm, so entries 4,096 times
# as large as usual fit, and those that are a billionth of the norm are not yet 0.
_NORM_IN_UNITS = 16.0
_GROWTH = 1024.0  # of the unit, after a sum that did not fit
_LARGEST_UNIT = 2.0**60


class Float16Gradients:
    """Gradients as float16, in a unit that follows their norm.

    The unit is a power of two, so that changing it rounds nothing, and the same for all learners,
    who know the norm of their mean gradient. A sum that does not fit is not finite: the step is
    skipped, and the next one has a larger unit.
    """

    def __init__(self) -> None:
        self._unit = tf.Variable(1.0, trainable=False, name="gradient_unit")

    def encode(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns float32 gradients as float16."""
        return [tf.cast(gradient / self._unit, tf.float16) for gradient in gradients]

    def decode(self, sums: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns float16 sums over the learners as float32."""
        return [tf.cast(each, tf.float32) * self._unit for each in sums]

    def follow(self, norm: tf.Tensor) -> None:
        """Chooses the unit of the next step.

        Args:
          norm: global norm of this step's mean gradient, not finite if a sum did not fit.
        """
        fitting = 2.0 ** tf.math.ceil(tf.math.log(norm / _NORM_IN_UNITS) / tf.math.log(2.0))
        larger = tf.minimum(self._unit * _GROWTH, _LARGEST_UNIT)
        # Where everything was rounded to 0, the unit was too large, unless it is the usual one.
        unit = tf.where(norm > 0, fitting, tf.minimum(self._unit, 1.0))
        self._unit.assign(tf.where(tf.math.is_finite(norm), unit, larger))
