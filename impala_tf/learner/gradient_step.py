"""What the gradient steps of all algorithms share: one step along the learners' mean gradient."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents import inputs
from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config, resolved
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner import signals
from impala_tf.learner.compression import Float16Gradients
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.optimizers import make_optimizer
from impala_tf.learner.statistics import Moments, observation_statistics
from impala_tf.types import ActorGradient, EnvironmentSpec, EnvOutput, Nest, Sent


class StepResult(NamedTuple):
    """What a compiled step returns."""

    stats: Any  # a NamedTuple of float32 scalars, see `monitoring.metrics`; () without a batch
    group_signals: tf.Tensor  # the sum of all learners' signals
    taken: tf.Tensor  # bool: not if a gradient or statistic of any learner was not finite
    kl: tf.Tensor  # mean KL divergence over all learners in nats; NaN if nobody had a batch
    all_reduce_s: tf.Tensor  # seconds in the all-reduce, float64; waiting for other learners, too
    td_errors: Nest = ()  # float32 [B]: of Q-values


class Applied(NamedTuple):
    """What came of the learners' mean gradient; the same for all of them."""

    gradient_norm: tf.Tensor  # global norm before clipping
    group_signals: tf.Tensor
    sums: list[tf.Tensor]  # over all learners
    taken: tf.Tensor
    all_reduce_s: tf.Tensor


class GradientStep(abc.ABC):
    """The compiled steps of one learner, and all variables that they change.

    Args:
      agent: the network, its variables made.
      layout: of the level's observations.
      config: resolved.
      group: the learners whose gradients are averaged.
      has_target: whether there is a target network.

    Attributes:
      learning_rate, entropy_cost: read by every step.
      optimizer: with its slots.
      target_agent: None: there is none.
      with_batch, without_batch: `_with_batch` and `_without_batch`, compiled.
    """

    def __init__(
        self,
        agent: Agent,
        layout: ObservationLayout,
        config: Config,
        group: LearnerGroup,
        has_target: bool,
    ) -> None:
        self.agent = agent
        self._layout = layout
        self._config = config
        self._group = group
        self.learning_rate = tf.Variable(0.0, trainable=False, name="learning_rate")
        self.entropy_cost = tf.Variable(0.0, trainable=False, name="entropy_cost")
        self.optimizer = make_optimizer(
            config.optimizer, self.learning_rate, agent.trainable_variables
        )
        self.target_agent = copy.deepcopy(agent) if has_target else None
        compresses = group.size > 1 and config.optimizer.gradient_compression == "fp16"
        self._compression = Float16Gradients() if compresses else None
        self._observations = observation_statistics(agent.observation_normalizer)
        self._moments = tf.function(self._moments_of, autograph=False)
        self._add_moments = tf.function(self._merge, autograph=False)
        self.with_batch = tf.function(self._with_batch, autograph=False)
        self.without_batch = tf.function(self._without_batch, autograph=False)

    def trackables(self) -> dict[str, snt.Module]:
        """Returns what a checkpoint holds, by name."""
        everything = {
            "agent": self.agent,
            "optimizer": self.optimizer,
            "target_agent": self.target_agent,
            "observation_statistics": self._observations,
        }
        return {name: part for name, part in everything.items() if part is not None}

    def convert_statistics(self) -> None:
        """Makes restored statistics of `statistics` format 1 those of the present format."""
        if self._observations is not None:
            self._observations.convert()

    def compile_observe(self, spec: EnvironmentSpec) -> None:
        """Makes the graph of `observe` now, for batches of the level's steps."""
        if self._observations is None:
            return
        optimizer = self._config.optimizer
        unroll = unroll_specs(self.agent, spec, resolved(optimizer.unroll_length))
        batch_size = resolved(optimizer.batch_size)
        self._moments.get_concrete_function(
            tf.nest.map_structure(
                lambda each: tf.TensorSpec((batch_size, *each.shape), each.dtype),
                unroll.env_outputs,
            )
        )

    def observe(self, batch: Sent | None) -> None:
        """Adds the new observations of all learners to the statistics that normalise them, if any.

        All learners of a group call it together, and their statistics stay equal.

        Args:
          batch: an Unroll [B, ...]; None: this learner has none.
        """
        statistics = self._observations
        if statistics is None or isinstance(batch, ActorGradient):
            return
        own = statistics.no_moments() if batch is None else self._moments(batch.env_outputs)
        # Moments of different means cannot be added up: each learner fills a row of its own.
        mine = [rank == self._group.rank for rank in range(self._group.size)]
        rows = tf.nest.map_structure(
            lambda part: tf.stack([part if is_own else tf.zeros_like(part) for is_own in mine]), own
        )
        everyones = self._group.sum(tf.nest.flatten(rows), name="observations")
        self._add_moments(tf.nest.pack_sequence_as(rows, everyones))

    def update_target(self) -> None:
        """Makes the target network, if there is one, a copy of the network."""
        if self.target_agent is not None:
            for target, variable in zip(
                self.target_agent.variables, self.agent.variables, strict=True
            ):
                target.assign(variable)

    def exchange(self, own_signals: tf.Tensor) -> tf.Tensor:
        """Returns the sum of all learners' signals, without a step."""
        return self._group.sum([own_signals], name="signals")[0]

    @abc.abstractmethod
    def compile(self, spec: EnvironmentSpec, own_signals: tf.Tensor) -> None:
        """Makes the graphs of `with_batch` now, for batches of the level's steps."""

    @abc.abstractmethod
    def _with_batch(
        self,
        minibatch: Any,
        parameter_version: tf.Tensor,
        own_signals: tf.Tensor,
    ) -> StepResult:
        """Takes a step with a batch.

        Args:
          minibatch: what to learn from.
          parameter_version: of the parameters before the step, int64.
          own_signals: of this learner; see `signals`.
        """

    @abc.abstractmethod
    def _without_batch(self, own_signals: tf.Tensor) -> StepResult:
        """Takes part in the step of the other learners."""

    def _apply(
        self,
        gradients: list[tf.Tensor],
        own_signals: tf.Tensor,
        own_sums: list[tf.Tensor],
        add: Callable[[list[tf.Tensor]], None],
    ) -> Applied:
        """Steps along the mean gradient of the learners that have a batch.

        Args:
          gradients: of this learner; zeros if it has no batch.
          own_signals: of this learner.
          own_sums: what else is added up over all learners.
          add: takes these sums, if the step is taken.
        """
        gradients, others, all_reduce_s = self._summed(gradients, [own_signals, *own_sums])
        group_signals, sums = others[0], others[1:]
        if self._group.size > 1:
            learners = tf.maximum(signals.num_batches(group_signals), 1.0)
            gradients = [gradient / learners for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        if self._compression is not None:
            self._compression.follow(norm)
        clip = resolved(self._config.optimizer.gradients_clipping)
        if clip > 0:
            gradients, _ = tf.clip_by_global_norm(gradients, clip, use_norm=norm)

        def step() -> tf.Tensor:
            self.optimizer.apply(gradients, self.agent.trainable_variables)
            self.agent.constrain()
            add(sums)
            return tf.constant(True)

        # All learners see the same sums, so they decide alike and stay equal.
        taken = tf.cond(_all_finite([norm, *sums]), step, lambda: tf.constant(False))
        return Applied(norm, group_signals, sums, taken, all_reduce_s)

    def _summed(
        self, gradients: list[tf.Tensor], others: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
        """Returns the sums of gradients and others over all learners, and the seconds it took."""
        own = [*gradients, *others]
        if self._group.size == 1:
            return gradients, others, tf.constant(0.0, tf.float64)
        with tf.control_dependencies(own):
            begun_s = tf.timestamp()
        if self._compression is None:
            summed = self._group.sum(own)
        else:
            sent = self._group.sum(self._compression.encode(gradients), name="gradients")
            summed = [*self._compression.decode(sent), *self._group.sum(others)]
        with tf.control_dependencies(summed):
            taken_s = tf.timestamp() - begun_s
        return summed[: len(gradients)], summed[len(gradients) :], taken_s

    def _no_gradients(self) -> list[tf.Tensor]:
        return [tf.zeros_like(variable) for variable in self.agent.trainable_variables]

    def _moments_of(self, env_outputs: EnvOutput) -> list[Moments]:
        """Returns the moments of the observations of unrolls [B, T + 1, ...]."""
        assert self._observations is not None
        seen = inputs.time_major(self._layout, env_outputs).observation
        # The last step of an unroll is the first of the next one.
        return self._observations.moments(tf.nest.map_structure(lambda part: part[:-1], seen))

    def _merge(self, everyones: list[Moments]) -> None:
        assert self._observations is not None
        self._observations.add(everyones)


def _all_finite(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in tensors])
