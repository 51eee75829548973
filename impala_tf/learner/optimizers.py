"""Optimizers, whose slots exist before the first update, and the schedules of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import sonnet as snt
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.config import Config, OptimizerConfig

Optimizer: TypeAlias = snt.optimizers.RMSProp | snt.optimizers.Adam

_KL_TARGET = 0.01  # nats
_KL_FACTOR = 1.5  # as in rl_games


def make_optimizer(
    config: OptimizerConfig, learning_rate: tf.Variable, variables: Sequence[tf.Variable]
) -> Optimizer:
    """Returns the optimizer for these variables.

    Args:
      config: the optimizer's flags.
      learning_rate: the variable that holds the learning rate, read at every update.
      variables: the variables that it will be applied to, in this order.
    """
    optimizer: Optimizer = (
        FusedAdam(learning_rate, epsilon=config.epsilon, name="adam")
        if config.optimizer == "adam"
        else FusedRMSProp(
            learning_rate, config.decay, config.momentum, config.epsilon, name="rmsprop"
        )
    )
    # A checkpoint can only be restored into existing slots, but Sonnet creates them at the first
    # step.
    optimizer._initialize(variables)
    if config.optimizer == "rmsprop":
        # Mean squares start at 1, as in TensorFlow 1 and so in the paper's experiments. Sonnet
        # starts at 0: then the first steps are ten times too large and leave dead units behind.
        for mean_square in optimizer.ms:
            mean_square.assign(tf.ones_like(mean_square))
    return optimizer


class FusedAdam(snt.optimizers.Adam):
    """Sonnet's Adam in one pass over memory. Sonnet makes over a dozen: a fifth of an update."""

    def apply(self, updates: Sequence[tf.Tensor], parameters: Sequence[tf.Variable]) -> None:
        """Updates the parameters; takes only dense float32 updates."""
        self.step.assign_add(1)
        step = tf.cast(self.step, tf.float32)
        beta_1, beta_2 = tf.constant(self.beta1), tf.constant(self.beta2)
        power_1, power_2 = tf.pow(beta_1, step), tf.pow(beta_2, step)
        for update, parameter, m, v in zip(updates, parameters, self.m, self.v, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=parameter.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=power_1,
                beta2_power=power_2,
                lr=tf.convert_to_tensor(self.learning_rate),
                beta1=beta_1,
                beta2=beta_2,
                # TensorFlow adds epsilon before correcting the bias of v; Sonnet and the paper
                # (Kingma and Ba, 2015, arXiv 1412.6980, algorithm 1) add it afterwards.
                epsilon=self.epsilon * tf.sqrt(1.0 - power_2),
                grad=update,
            )


class FusedRMSProp(snt.optimizers.RMSProp):
    """Sonnet's uncentred RMSProp in one pass over memory."""

    def apply(self, updates: Sequence[tf.Tensor], parameters: Sequence[tf.Variable]) -> None:
        """Updates the parameters; takes only dense float32 updates."""
        for update, parameter, ms, mom in zip(updates, parameters, self.ms, self.mom, strict=True):
            tf.raw_ops.ResourceApplyRMSProp(
                var=parameter.handle,
                ms=ms.handle,
                mom=mom.handle,
                lr=tf.convert_to_tensor(self.learning_rate),
                rho=self.decay,
                momentum=self.momentum,
                epsilon=self.epsilon,
                grad=update,
            )


class Schedules:
    """Learning rate and entropy cost as functions of environment frames and of the KL divergence.

    Args:
      config: the run's config.

    Attributes:
      kl_factor: the factor by which the schedule "kl" multiplies the learning rate; part of a
        checkpoint.
    """

    def __init__(self, config: Config) -> None:
        self.kl_factor = 1.0
        self._config = config
        self._last_frame = config.run.schedule_frames

    def learning_rate(self, environment_frames: int) -> float:
        """Returns the learning rate of the next update."""
        optimizer = self._config.optimizer
        if optimizer.learning_rate_schedule == "constant":
            return optimizer.learning_rate
        start, end = optimizer.learning_rate, optimizer.learning_rate_end
        rate = configs.linear(start, end, environment_frames, self._last_frame)
        return rate * self.kl_factor

    def entropy_cost(self, environment_frames: int) -> float:
        """Returns the entropy cost of the next update."""
        loss = self._config.loss
        start, end = loss.entropy_cost, loss.entropy_cost_end
        return configs.linear(start, end, environment_frames, self._last_frame)

    def observe_kl(self, kl: float) -> None:
        """Adapts the learning rate to the KL divergence, in nats, if its schedule is "kl"."""
        optimizer = self._config.optimizer
        if optimizer.learning_rate_schedule != "kl":
            return
        if kl > 2.0 * _KL_TARGET:
            self.kl_factor = max(self.kl_factor / _KL_FACTOR, 1.0 / configs.KL_RANGE)
        elif kl < 0.5 * _KL_TARGET:
            # At most 1: a policy that finds no rewards hardly changes, and the learning rate would
            # grow until it destroys the policy.
            self.kl_factor = min(self.kl_factor * _KL_FACTOR, 1.0)
