"""Optimizers, with their slots made before the first update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import sonnet as snt
import tensorflow as tf

from impala_tf.config import OptimizerConfig

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
    optimizer = make(config, learning_rate)
    # A checkpoint can only be restored into slots that exist; Sonnet makes them at the first step.
    optimizer._initialize(variables)
    if config.optimizer == "rmsprop":
        # Mean squares start at 1, as in TensorFlow 1 and so in the paper's experiments. From 0,
        # where Sonnet starts, the first steps are ten times too large and leave dead units behind.
        for mean_square in optimizer.ms:
            mean_square.assign(tf.ones_like(mean_square))
    return optimizer


def _adam(config: OptimizerConfig, learning_rate: tf.Variable) -> Optimizer:
    betas = {"beta1": config.adam_beta1, "beta2": config.adam_beta2}
    return snt.optimizers.Adam(learning_rate, epsilon=config.epsilon, **betas)


def _rmsprop(config: OptimizerConfig, learning_rate: tf.Variable) -> Optimizer:
    return snt.optimizers.RMSProp(
        learning_rate,
        decay=config.decay,
        momentum=config.momentum,
        epsilon=config.epsilon,
    )
