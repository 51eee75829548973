"""The gradient step of policies: impala, appo and ppo."""

from __future__ import annotations

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config, resolved
from impala_tf.environments.observations import ObservationLayout
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, StepResult
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.policy_gradients import Learned, PolicyGradients, policy_stats
from impala_tf.learner.statistics import RunningMoments, ValueNormalizer
from impala_tf.types import EnvironmentSpec

# Decay of the running mean square of the advantages, per update.
_ADVANTAGE_DECAY = 0.99


class _Sums(NamedTuple):
    """What learners exchange for their statistics, besides gradients; summed over all learners."""

    steps: tf.Tensor
    squared_advantages: tf.Tensor
    kl: tf.Tensor  # times steps


class PolicyStep(GradientStep):
    """The steps of a policy and its baseline. Arguments and attributes as of `GradientStep`."""

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        loss = config.loss
        has_target = loss.algorithm == "appo" and resolved(loss.target_update_interval) > 0
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

    def compile(self, spec: EnvironmentSpec, own_signals: tf.Tensor) -> None:
        """See `GradientStep`. Minibatches of ppo have no fixed size."""
        if self._config.loss.algorithm == "ppo":
            return
        optimizer = self._config.optimizer
        batch_size = resolved(optimizer.batch_size)
        specs = unroll_specs(self.agent, spec, resolved(optimizer.unroll_length))
        batch = tf.nest.map_structure(
            lambda spec: tf.TensorSpec((batch_size, *spec.shape), spec.dtype), specs
        )
        version = tf.TensorSpec((), tf.int64)
        self.with_batch.get_concrete_function(
            Minibatch(batch, ()), version, tf.TensorSpec.from_tensor(own_signals)
        )

    def _with_batch(
        self,
        minibatch: Minibatch,
        parameter_version: tf.Tensor,
        own_signals: tf.Tensor,
    ) -> StepResult:
        learned = self._gradients.of_batch(minibatch)
        norm, result = self._step(learned, own_signals)
        lag = tf.cast(parameter_version - minibatch.unrolls.parameter_version, tf.float32)
        return result._replace(stats=policy_stats(learned.loss, norm, lag))

    def _without_batch(self, own_signals: tf.Tensor) -> StepResult:
        return self._step(self._gradients.of_nothing(), own_signals)[1]

    def _step(self, own: Learned, own_signals: tf.Tensor) -> tuple[tf.Tensor, StepResult]:
        """Returns the gradient's norm, and the result without statistics."""

        def add(sums: list[tf.Tensor]) -> None:
            self._add_statistics(_Sums(*tf.unstack(sums[0])), sums[1])

        loss = own.loss
        own_sums = _Sums(loss.steps, loss.squared_advantages, loss.kl * loss.steps)
        others = [tf.stack(own_sums), loss.value_sums]
        applied = self._apply(own.gradients, own_signals, others, add)
        sums = _Sums(*tf.unstack(applied.sums[0]))
        kl = sums.kl / sums.steps
        result = StepResult((), applied.group_signals, applied.taken, kl, applied.all_reduce_s)
        return applied.gradient_norm, result

    def _add_statistics(self, sums: _Sums, value_sums: tf.Tensor) -> None:
        if self._advantages is not None:
            self._advantages.add(sums.steps, tf.constant(0.0), sums.squared_advantages)
        if self._values is not None:
            count, total, squares = tf.unstack(value_sums)
            self._values.add(count, total, squares, self.agent.baseline_layer)
