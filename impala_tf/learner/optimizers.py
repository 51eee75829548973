"""Optimizers, with their slots made before the first update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import sonnet as snt
import tensorflow as tf

from impala_tf.config import OptimizerConfig, resolved

Optimizer: TypeAlias = snt.optimizers.RMSProp | snt.optimizers.Adam


def make_optimizer(
    config: OptimizerConfig, learning_rate: tf.Variable, variables: Sequence[tf.Variable]
) -> Optimizer:
    """Returns the optimizer for these variables.

    Args:
      config: resolved.
      learning_rate: read at every update.
      variables: what it will be applied to, in this order.
    """
    make = _adam if config.optimizer == "adam" else _rmsprop
    return make(config, learning_rate, variables)


def _adam(
    config: OptimizerConfig, learning_rate: tf.Variable, variables: Sequence[tf.Variable]
) -> Optimizer:
    optimizer = snt.optimizers.Adam(
        learning_rate=learning_rate,
        beta1=config.adam_beta1,
        beta2=config.adam_beta2,
        epsilon=resolved(config.epsilon),
    )
    # A checkpoint can only be restored into slots that exist; Sonnet makes them at the first step.
    optimizer._initialize(variables)
    return optimizer


def _rmsprop(
    config: OptimizerConfig, learning_rate: tf.Variable, variables: Sequence[tf.Variable]
) -> Optimizer:
    optimizer = snt.optimizers.RMSProp(
        learning_rate=learning_rate,
        decay=config.decay,
        momentum=config.momentum,
        epsilon=resolved(config.epsilon),
    )
    optimizer._initialize(variables)
    # Mean squares start at 1, as in TensorFlow 1 and so in the paper's experiments. From 0, where
    # Sonnet starts, the first steps are ten times too large and leave dead units behind.
    for mean_square in optimizer.ms:
        mean_square.assign(tf.ones_like(mean_square))
    return optimizer
