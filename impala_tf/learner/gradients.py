"""Gradients as every step, clipping and all-reduce takes them: dense."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def dense_gradients(
    tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Returns the gradient of `loss` for each variable, of the variable's shape.

    TensorFlow gives the gradient of an embedding as slices, one for each word that was read. A word
    that was read twice has two of them, which have to be added up before a norm is taken; and
    slices can neither be summed over learners nor sent by an actor.
    """
    return [tf.convert_to_tensor(each) for each in tape.gradient(loss, variables)]
