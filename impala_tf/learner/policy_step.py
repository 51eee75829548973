"""The gradient step of a policy and its baseline."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import Agent
from impala_tf.config import Config, algorithm
from impala_tf.environments.observations import ObservationLayout, swap_batch_and_time
from impala_tf.learner import losses
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, Learned, dense_gradients
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.losses import Estimates, Losses, Scales, Transitions
from impala_tf.learner.moments import RunningMoments
from impala_tf.types import EnvironmentSpec, Nest, Unroll

# Decays of the running moments of advantages and of value targets, per update.
_ADVANTAGE_DECAY, _VALUE_DECAY = 0.99, 0.999
# With fewer agent steps at a time, launching operations would take longer than running them.
# Operations on images run longer, and their activations are much larger: up to a MB per step.
_FEW_IMAGES, _FEW_STEPS = 512, 4096


class PolicyStats(NamedTuple):
    """Statistics of one gradient step; float32 scalars. --loss_reduction applies to the losses."""

    loss_total: tf.Tensor
    loss_policy_gradient: tf.Tensor
    loss_baseline: tf.Tensor
    entropy: tf.Tensor  # nats, mean over steps
    kl: tf.Tensor  # nats, mean over steps: KL(mu || pi); mu is the behaviour policy
    explained_variance: tf.Tensor  # of the value targets
    advantage_rms: tf.Tensor  # before scaling; with several levels, in their value_std units
    rho_clip_fraction: tf.Tensor
    c_clip_fraction: tf.Tensor
    surrogate_clip_fraction: tf.Tensor
    # `GradientStep` fills these in:
    gradient_norm: tf.Tensor = 0.0  # global norm before clipping
    policy_lag_mean: tf.Tensor = 0.0  # mean of the learner updates since the acting parameters
    policy_lag_max: tf.Tensor = 0.0


class UnrollStep(GradientStep):
    """A gradient step on unrolls, with what was prepared for their whole batch, if anything.

    Attributes:
      PREPARED: how many arrays are prepared for a batch, if they are.
    """

    PREPARED = 0

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        super().__init__(agent, layout, config, group)
        self._prepare_group = tf.function(self._transitions_of_rows, autograph=False)
        self._prepare_batch = tf.function(self._estimated, autograph=False)

    def prepare(self, batch: Unroll) -> Nest:
        """Returns what the minibatches of a batch [B, ...] need, float32 [B, T] each.

        It runs the network on one group of unrolls at a time, then estimates from the steps of all.
        Batches grow with the number of actors, and so would their activations. So a group is not
        larger than a part of a minibatch, unless that has very few steps.
        """
        size, groups = len(batch.parameter_version), self._groups_of(batch)
        # Groups have at most two sizes, because each size needs its own graph.
        ends = [size * number // groups for number in range(groups + 1)]
        transitions = [
            self._prepare_group(batch, tf.constant(begin), end - begin)
            for begin, end in zip(ends, ends[1:], strict=False)
        ]
        # The last dimension of every field is that of unrolls.
        joined = [tf.concat(parts, axis=-1) for parts in zip(*transitions, strict=True)]
        return self._prepare_batch(Transitions(*joined))

    def _groups_of(self, batch: Unroll) -> int:
        optimizer, size = self._config.optimizer, len(batch.parameter_version)
        parts = tf.nest.flatten(batch.env_outputs.observation)
        fewest_steps = _FEW_IMAGES if any(part.dtype == tf.uint8 for part in parts) else _FEW_STEPS
        most_groups = size * optimizer.unroll_length // fewest_steps
        wanted = (optimizer.minibatches or 1) * configs.micro_batches(self._config)
        return max(1, min(wanted, size, most_groups))

    def _transitions_of_rows(self, batch: Unroll, begin: tf.Tensor, size: int) -> Transitions:
        def rows(tensor: tf.Tensor) -> tf.Tensor:
            rest = tensor.shape[1:]
            return tf.slice(tensor, [begin, *[0] * len(rest)], [size, *rest])

        return self._transitions(tf.nest.map_structure(rows, batch))

    def _estimated(self, steps: Transitions) -> Nest:
        """Returns what a batch's minibatches need of its `Estimates`, float32 [B, T] each."""
        estimate = algorithm(self._config.loss.algorithm).estimate
        assert estimate is not None
        return tuple(map(tf.transpose, self._prepared_of(estimate(steps, self._config.loss))))

    @abc.abstractmethod
    def _transitions(self, unrolls: Unroll) -> Transitions:
        """Returns the transitions of unrolls [b, ...], which are independent of each other."""

    def _prepared_of(self, estimates: Estimates) -> Sequence[tf.Tensor]:
        """Returns the PREPARED arrays [T, B] that minibatches need."""
        importance = tf.broadcast_to(estimates.importance, tf.shape(estimates.advantages))
        return estimates._replace(importance=importance)

    @property
    def _is_prepared(self) -> bool:
        return algorithm(self._config.loss.algorithm).estimates_once

    def compile(self, spec: EnvironmentSpec) -> None:
        """Builds the graph of `step` now, unless minibatches have no fixed size."""
        if not self._is_prepared:
            super().compile(spec)

    def minibatch_specs(self, spec: EnvironmentSpec) -> Minibatch:
        """Returns a Minibatch of tf.TensorSpec; if their sizes differ, the largest one."""
        optimizer = self._config.optimizer
        if not self._is_prepared:
            return Minibatch(self.unroll_specs(spec, optimizer.batch_size))
        size = -(-optimizer.batch_size // optimizer.minibatches)
        prepared = tf.TensorSpec((size, optimizer.unroll_length), tf.float32)
        return Minibatch(self.unroll_specs(spec, size), (prepared,) * self.PREPARED)

    def masked(self, spec: EnvironmentSpec) -> Minibatch:
        """Returns a minibatch of resets, which has no valid step."""
        minibatch: Minibatch = super().masked(spec)
        env_outputs = minibatch.unrolls.env_outputs
        resets = env_outputs._replace(autoreset=tf.ones_like(env_outputs.autoreset))
        return minibatch._replace(unrolls=minibatch.unrolls._replace(env_outputs=resets))


class PolicyStep(UnrollStep):
    """The gradient step of a policy and its baseline. For arguments see `GradientStep`."""

    PREPARED = len(Estimates._fields)
    STATS = PolicyStats

    def __init__(
        self, agent: Agent, layout: ObservationLayout, config: Config, group: LearnerGroup
    ) -> None:
        super().__init__(agent, layout, config, group)
        loss = config.loss
        scales, normalizes = loss.advantage_scaling == "rms", loss.value_normalization == "running"
        self._advantages = RunningMoments(_ADVANTAGE_DECAY) if scales else None
        self._values = value_moments(agent) if normalizes else None

    def trackables(self) -> dict[str, snt.Module]:
        """Returns what a checkpoint holds, by name."""
        own = {"advantage_moments": self._advantages, "value_moments": self._values}
        used = {name: part for name, part in own.items() if part is not None}
        return {**super().trackables(), **used}

    def refresh(self) -> None:
        """Sets the baseline's scale, which follows from the value targets' moments."""
        if self._values is not None:
            self.agent.policy_heads.unit.assign(self._values.mean, self._values.std)

    def _learn(self, minibatch: Minibatch) -> Learned:
        gradients, loss = self.gradients_of(minibatch)
        sums = {
            "steps": loss.steps,
            "squared_advantages": loss.squared_advantages,
            "kl": loss.kl * loss.steps,
            "values": loss.value_sums,
        }
        return Learned(gradients, policy_stats(loss), minibatch.unrolls.parameter_version, sums)

    def _add(self, sums: dict[str, tf.Tensor]) -> None:
        if self._advantages is not None:
            self._advantages.add(sums["steps"], tf.constant(0.0), sums["squared_advantages"])
        if self._values is not None:
            self._values.add(*tf.unstack(sums["values"]))
            self.agent.policy_heads.set_unit(self._values.mean, self._values.std)

    def gradients_of(self, minibatch: Minibatch) -> tuple[list[tf.Tensor], Losses]:
        """Returns gradients and losses of a minibatch; the losses' sums of values are [3, levels].

        The minibatch is split into `config.micro_batches` parts, so that memory holds the
        activations of only one part at a time.
        """
        batch_size = minibatch.unrolls.parameter_version.shape[0]
        parts = configs.micro_batches(self._config)
        if parts == 1 or batch_size is None or batch_size % parts:
            return self._of_part(minibatch, None)
        split = tf.nest.map_structure(
            lambda t: tf.reshape(t, (parts, batch_size // parts, *t.shape[1:])), minibatch
        )
        # No transition of the unroll leads to its first step.
        was_reset = minibatch.unrolls.env_outputs.autoreset[:, 1:]
        valid_steps = tf.reduce_sum(tf.cast(tf.logical_not(was_reset), tf.float32))

        def add(index: tf.Tensor, sums: Nest) -> tuple[tf.Tensor, Nest]:
            part = tf.nest.map_structure(lambda t: t[index], split)
            return index + 1, tf.nest.map_structure(tf.add, sums, self._of_part(part, valid_steps))

        start = (tf.constant(0), self._zeros())
        _, sums = tf.while_loop(lambda index, _: index < parts, add, start, parallel_iterations=1)
        gradients, loss = sums
        return gradients, loss

    def _zeros(self) -> tuple[list[tf.Tensor], Losses]:
        zeros = Losses(*[tf.constant(0.0)] * len(Losses._fields))
        sums = tf.zeros((3, self.agent.num_levels))
        gradients = [tf.zeros_like(variable) for variable in self.agent.trainable_variables]
        return gradients, zeros._replace(value_sums=sums, target_sums=sums)

    def _transitions(self, unrolls: Unroll) -> Transitions:
        """Returns the transitions of unrolls [b, ...] under the current policy."""
        unroll = time_major(unrolls, self.layout)
        outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
        return losses.transitions(
            outputs.policy_logits,
            self._of_level(outputs.baseline, unroll.level),
            unroll.env_outputs,
            unroll.agent_outputs,
            self._config.loss,
            self.agent.distribution,
        )

    def _of_part(
        self, minibatch: Minibatch, valid_steps: tf.Tensor | None
    ) -> tuple[list[tf.Tensor], Losses]:
        """Returns gradients and losses of a minibatch, or of a part of it."""
        level = minibatch.unrolls.level
        with tf.GradientTape() as tape:
            steps = self._transitions(minibatch.unrolls)
            loss = losses.compute(
                steps, self._config.loss, self._scales(level), _prepared(minibatch), valid_steps
            )
        gradients = dense_gradients(tape, loss.total, self.agent.trainable_variables)
        levels = tf.one_hot(level, self.agent.num_levels)
        return gradients, loss._replace(
            value_sums=tf.matmul(loss.value_sums, levels),
            target_sums=tf.matmul(loss.target_sums, levels),
        )

    def _of_level(self, of_all: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
        """Selects the value of each unroll's level: [..., B, levels] to [..., B]."""
        return tf.reduce_sum(of_all * tf.one_hot(level, self.agent.num_levels), axis=-1)

    def _scales(self, level: tf.Tensor) -> Scales:
        unit = self.agent.policy_heads.unit
        value_std = self._of_level(unit.std, level)
        return Scales(
            entropy_cost=self.entropy_cost,
            advantage_rms=1.0 if self._advantages is None else self._advantages.rms,
            # Otherwise levels with large returns would dominate the policy gradient (Hessel et al.,
            # 2018, arXiv 1809.04474).
            advantage_unit=value_std if self.agent.num_levels > 1 else 1.0,
            value_std=value_std,
            value_mean=self._of_level(unit.mean, level),
        )


def value_moments(agent: Agent) -> RunningMoments:
    """Returns new moments of each level's value targets."""
    return RunningMoments(_VALUE_DECAY, agent.num_levels)


def time_major(batch: Unroll, layout: ObservationLayout) -> Unroll:
    """Converts a batch [B, T, ...] to [T, B, ...], with observations as the network sees them."""
    return batch._replace(
        env_outputs=layout.time_major(batch.env_outputs),
        agent_outputs=tf.nest.map_structure(swap_batch_and_time, batch.agent_outputs),
    )


def _prepared(minibatch: Minibatch) -> Estimates | None:
    return Estimates(*map(tf.transpose, minibatch.prepared)) if minibatch.prepared else None


def policy_stats(loss: Losses) -> PolicyStats:
    """Returns the statistics of a gradient step; its norm and lags are still 0."""
    return PolicyStats(
        loss_total=loss.total,
        loss_policy_gradient=loss.policy_gradient,
        loss_baseline=loss.baseline,
        entropy=loss.entropy,
        kl=loss.kl,
        explained_variance=losses.explained_variance(loss.value_error, loss.target_sums),
        advantage_rms=tf.sqrt(loss.squared_advantages / tf.maximum(loss.steps, 1.0)),
        rho_clip_fraction=loss.rho_clip_fraction,
        c_clip_fraction=loss.c_clip_fraction,
        surrogate_clip_fraction=loss.surrogate_clip_fraction,
    )
