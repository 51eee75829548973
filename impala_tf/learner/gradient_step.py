"""The base class of gradient steps: a step along the mean gradient of all learners."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config, plug_ins
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner import device
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.moments import ObservationStatistics
from impala_tf.learner.optimizers import make_optimizer
from impala_tf.types import EnvironmentSpec, Nest, Unroll


class Learned(NamedTuple):
    """What this learner computed from its minibatch."""

    gradients: list[tf.Tensor]
    stats: Any  # the algorithm's statistics; the step fills in norm and lags
    parameter_version: tf.Tensor  # int64 [b]: of the parameters that chose the actions
    # Sums that are added up over all learners, for `_add`. The ratio of "kl" (in nats) to "steps",
    # if present, is what --learning_rate_schedule=kl uses. Both are float32 scalars.
    sums: dict[str, tf.Tensor]
    td_errors: Nest = ()  # float32 [b]; () without a replay buffer


class GradientStep(abc.ABC):
    """The compiled gradient step of one learner, and all variables that it changes.

    Args:
      agent: the network, whose variables have been created.
      layout: the layout of the level's observations.
      config: the run's config.
      group: the learners whose gradients are averaged.

    Attributes:
      HAS_TARGET: whether the class has a target network.
      STATS: the NamedTuple of a step's statistics, float32 scalars, see `monitoring.metrics`.
      learning_rate, entropy_cost: variables that every step reads.
      optimizer: the optimizer, with its slots.
      observations: the statistics that normalise observations.
      target_agent: the target network; None if there is none.
      step: `_step`, compiled.
    """

    HAS_TARGET = False
    STATS: Any

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        self.agent = agent
        self.layout = layout
        self.group = group
        self._config = config
        self.learning_rate = tf.Variable(0.0, trainable=False, name="learning_rate")
        self.entropy_cost = tf.Variable(0.0, trainable=False, name="entropy_cost")
        self.optimizer = make_optimizer(
            config.optimizer, self.learning_rate, agent.trainable_variables
        )
        self.target_agent = copy.deepcopy(agent) if self.HAS_TARGET else None
        self.observations = ObservationStatistics(agent.observation_normalizer, layout, group)
        # A user's algorithm may have operations that XLA cannot compile.
        suits_xla = agent.suits_xla and not plug_ins.is_own(config.loss.algorithm)
        self._compiled_learn = device.compiled(self._learn) if suits_xla else self._learn
        self.step = tf.function(self._step, autograph=False)

    def trackables(self) -> dict[str, snt.Module]:
        """Returns what a checkpoint holds, by name."""
        everything = {
            "agent": self.agent,
            "optimizer": self.optimizer,
            "target_agent": self.target_agent,
            "observation_statistics": self.observations if self.observations.parts else None,
        }
        return {name: part for name, part in everything.items() if part is not None}

    def compile(self, spec: EnvironmentSpec) -> None:
        """Builds the graph of `step` now, for minibatches of the level's steps."""
        self.step.get_concrete_function(*self._arguments(spec))

    def _arguments(self, spec: EnvironmentSpec) -> tuple[Any, tf.TensorSpec, tf.TensorSpec]:
        """Returns the specs of the arguments of `step`."""
        numbers = tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.float32)
        return self.minibatch_specs(spec), *numbers

    def unroll_specs(self, spec: EnvironmentSpec, size: int) -> Unroll:
        """Returns an Unroll [size, ...] of tf.TensorSpec."""
        return batched(unroll_specs(self.agent, spec, self._config.optimizer.unroll_length), size)

    def update_target(self) -> None:
        """Copies the network to the target network, if there is one."""
        if self.target_agent is not None:
            for target, variable in zip(
                self.target_agent.variables, self.agent.variables, strict=True
            ):
                target.assign(variable)

    def refresh(self) -> None:
        """Recomputes what depends on restored variables. By default, nothing."""
        return

    @abc.abstractmethod
    def minibatch_specs(self, spec: EnvironmentSpec) -> Any:
        """Returns the specs of a minibatch, as tf.TensorSpec."""

    def masked(self, spec: EnvironmentSpec) -> Any:
        """Returns a minibatch without a valid step, for a learner that has no batch."""
        return tf.nest.map_structure(
            lambda tensor: tf.zeros(tensor.shape, tensor.dtype), self.minibatch_specs(spec)
        )

    @abc.abstractmethod
    def _learn(self, minibatch: Any) -> Learned:
        """Computes gradients and statistics of a minibatch, without changing any variable."""

    def _add(self, sums: dict[str, tf.Tensor]) -> None:
        """Adds all learners' sums to the algorithm's statistics. Called if a step is taken."""
        return

    def _step(
        self, minibatch: Any, parameter_version: tf.Tensor, learners: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, Nest]:
        """Takes a step along the mean gradient of the learners that have a minibatch.

        Args:
          minibatch: what to learn from; `masked` if this learner has nothing.
          parameter_version: int64 [], the version of the parameters before the step.
          learners: float32 [], the number of learners that have a minibatch.

        Returns:
          (float32 [3 + S]: whether the step was taken, which it is not if a gradient or sum of any
          learner was not finite; the sums of "kl" and "steps" over all learners, or 0; the
          statistics;
          float64 []: seconds in the all-reduce, with waits for other learners;
          float32 [b]: TD errors, or ()).
        """
        learned = self._compiled_learn(minibatch)
        gradients, sums, all_reduce_s = self._summed(learned.gradients, learned.sums)
        if self.group.size > 1:
            gradients = [gradient / learners for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        clip = self._config.optimizer.gradients_clipping
        if clip > 0:
            gradients, _ = tf.clip_by_global_norm(gradients, clip, use_norm=norm)

        def apply() -> tf.Tensor:
            self.optimizer.apply(gradients, self.agent.trainable_variables)
            self.agent.constrain()
            self._add(sums)
            return tf.constant(True)

        # All learners see the same sums, so they decide alike and their variables stay equal.
        finite = _all_finite([norm, *sums.values()])
        taken = tf.cond(finite, apply, lambda: tf.constant(False))
        # After a resume, actors may send unrolls that are newer than the checkpoint.
        lag = tf.maximum(parameter_version - learned.parameter_version, 0)
        lag = tf.cast(lag, tf.float32)
        stats = learned.stats._replace(
            gradient_norm=norm,
            policy_lag_mean=tf.reduce_mean(lag),
            policy_lag_max=tf.reduce_max(lag),
        )
        numbers = [tf.cast(taken, tf.float32), *(sums.get(name, 0.0) for name in ("kl", "steps"))]
        return tf.stack([*numbers, *stats]), all_reduce_s, learned.td_errors

    def _summed(
        self, gradients: list[tf.Tensor], own_sums: dict[str, tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor], tf.Tensor]:
        """Returns gradients and sums, added up over all learners, and the seconds that it took."""
        own = (gradients, own_sums)
        if self.group.size == 1:
            return *own, tf.constant(0.0, tf.float64)
        with tf.control_dependencies(tf.nest.flatten(own)):
            started_s = tf.timestamp()
        summed = self.group.sum(own, name="update")
        with tf.control_dependencies(tf.nest.flatten(summed)):
            elapsed_s = tf.timestamp() - started_s
        return *summed, elapsed_s


def batched(specs: Nest, size: int) -> Nest:
    """Adds a leading dimension: specs [...] become specs [size, ...]."""
    return tf.nest.map_structure(lambda spec: tf.TensorSpec((size, *spec.shape), spec.dtype), specs)


def dense_gradients(
    tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
    """Returns the gradient of `loss` for each variable, of the variable's shape.

    TensorFlow gives the gradient of an embedding as slices, one per word that was read. Slices of
    the same word must be added before a norm is taken, and slices can neither be summed over
    learners nor sent by an actor. A variable that the loss does not depend on, which a user's
    network may have, gets zeros.
    """
    zero = tf.UnconnectedGradients.ZERO
    gradients = tape.gradient(loss, variables, unconnected_gradients=zero)
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _all_finite(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
