"""The gradient step of policies: impala, appo and ppo."""

from __future__ import annotations

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, StepResult
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.policy_gradients import PolicyGradients, policy_stats
from impala_tf.learner.statistics import RunningMoments, ValueNormalizer
from impala_tf.types import EnvironmentSpec, Unroll

# Decay of the running mean square of the advantages, per update.
_ADVANTAGE_DECAY = 0.99


class _Sums(NamedTuple):
    """What learners exchange for their statistics, besides gradients; summed over all learners."""

    steps: tf.Tensor
    squared_advantages: tf.Tensor
    kl: tf.Tensor  # times steps
    values: tf.Tensor  # [3] or [3, levels]: see `Losses.value_sums`


class PolicyStep(GradientStep):
    """The steps of a policy and its baseline. Arguments and attributes as of `GradientStep`."""

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        loss = config.loss
        has_target = loss.algorithm == "appo" and loss.target_update_interval > 0
        super().__init__(agent, layout, config, group, has_target)
        self._advantages = (
            RunningMoments(_ADVANTAGE_DECAY) if loss.advantage_scaling == "rms" else None
        )
        normalizes = loss.value_normalization == "running"
        self._values = ValueNormalizer(agent.num_levels) if normalizes else None
        self._gradients = PolicyGradients(
            agent,
            layout,
            config,
            self.entropy_cost,
            self.target_agent,
            self._advantages,
            self._values,
        )
        self.prepare = tf.function(self._gradients.prepare, autograph=False)

    def trackables(self) -> dict[str, snt.Module]:
        """See `GradientStep`."""
        own = {"advantage_moments": self._advantages, "value_normalizer": self._values}
        found = {name: part for name, part in own.items() if part is not None}
        return {**super().trackables(), **found}

    def convert_statistics(self) -> None:
        """See `GradientStep`."""
        super().convert_statistics()
        for part in (self._advantages, self._values):
            if part is not None:
                part.convert()

    def compile(self, spec: EnvironmentSpec) -> None:
        """See `GradientStep`. Minibatches of ppo have no fixed size."""
        if self._config.loss.algorithm == "ppo":
            return
        unrolls = self._unrolls(spec, self._config.optimizer.batch_size)
        version, learners = tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.float32)
        self.step.get_concrete_function(Minibatch(unrolls, ()), version, learners)

    def masked(self, spec: EnvironmentSpec) -> Minibatch:
        """See `GradientStep`."""
        optimizer = self._config.optimizer
        of_ppo = self._config.loss.algorithm == "ppo"
        parts = optimizer.minibatches if of_ppo else 1
        size = -(-optimizer.batch_size // parts)
        unrolls = tf.nest.map_structure(
            lambda each: tf.zeros(each.shape, each.dtype), self._unrolls(spec, size)
        )
        resets = tf.ones_like(unrolls.env_outputs.autoreset)
        unrolls = unrolls._replace(env_outputs=unrolls.env_outputs._replace(autoreset=resets))
        estimates = tf.zeros((size, optimizer.unroll_length))
        return Minibatch(unrolls, (estimates,) * 3 if of_ppo else ())

    def _unrolls(self, spec: EnvironmentSpec, size: int) -> Unroll:
        """Returns an Unroll [size, ...] of tf.TensorSpec."""
        specs = unroll_specs(self.agent, spec, self._config.optimizer.unroll_length)
        return tf.nest.map_structure(
            lambda each: tf.TensorSpec((size, *each.shape), each.dtype), specs
        )

    def _step(
        self, minibatch: Minibatch, parameter_version: tf.Tensor, learners: tf.Tensor
    ) -> StepResult:
        learned = self._gradients.of_batch(minibatch)
        loss = learned.loss
        own_sums = _Sums(loss.steps, loss.squared_advantages, loss.kl * loss.steps, loss.value_sums)
        applied = self._apply(learned.gradients, own_sums, learners)
        lag = tf.cast(parameter_version - minibatch.unrolls.parameter_version, tf.float32)
        stats = policy_stats(loss, applied.gradient_norm, lag)
        kl = applied.sums.kl / applied.sums.steps
        return StepResult(stats, applied.taken, kl, applied.all_reduce_s)

    def _add(self, sums: _Sums) -> None:
        if self._advantages is not None:
            self._advantages.add(sums.steps, tf.constant(0.0), sums.squared_advantages)
        if self._values is not None:
            count, total, squares = tf.unstack(sums.values)
            self._values.add(count, total, squares, self.agent.baseline_layer)
