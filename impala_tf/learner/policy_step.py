"""The gradient step of policies: impala, appo and ppo."""

from __future__ import annotations

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_tf.agents.agent import Agent, unroll_specs
from impala_tf.config import Config, resolved
from impala_tf.environments.observations import ObservationLayout, swap_batch_and_time
from impala_tf.learner.algorithms import losses, ppo
from impala_tf.learner.algorithms.losses import Losses, Scales
from impala_tf.learner.algorithms.transitions import Estimates, Transitions, transitions
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.gradient_step import GradientStep, StepResult
from impala_tf.learner.group import LearnerGroup
from impala_tf.learner.statistics import RunningMoments, ValueNormalizer
from impala_tf.types import EnvironmentSpec, Nest, NetworkOutput, Unroll

# Decay of the running mean square of the advantages, per update.
_ADVANTAGE_DECAY = 0.99


class PolicyStats(NamedTuple):
    """Statistics of one gradient step; float32 scalars. Losses are as --loss_reduction says."""

    loss_total: tf.Tensor
    loss_policy_gradient: tf.Tensor
    loss_baseline: tf.Tensor
    entropy: tf.Tensor  # nats, mean over steps
    kl: tf.Tensor  # nats, mean over steps: from the policy that acted
    explained_variance: tf.Tensor  # of the value targets
    advantage_rms: tf.Tensor  # before scaling
    rho_clip_fraction: tf.Tensor
    c_clip_fraction: tf.Tensor
    surrogate_clip_fraction: tf.Tensor
    gradient_norm: tf.Tensor  # global norm before clipping
    policy_lag_mean: tf.Tensor  # learner updates since the acting parameters, mean over the batch
    policy_lag_max: tf.Tensor


class _Sums(NamedTuple):
    """What learners exchange for their statistics, besides gradients; summed over all learners."""

    steps: tf.Tensor
    squared_advantages: tf.Tensor
    kl: tf.Tensor  # times steps


class _Learned(NamedTuple):
    """What a batch, or a part of one, adds to a step."""

    gradients: list[tf.Tensor]
    loss: Losses  # value_sums: [3], or [3, levels]
    seen: list[tf.Tensor]  # see `GradientStep._seen`


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
        self.prepare = tf.function(self._prepare, autograph=False)

    def trackables(self) -> dict[str, snt.Module]:
        """See `GradientStep`."""
        own = {"advantage_moments": self._advantages, "value_normalizer": self._values}
        found = {name: part for name, part in own.items() if part is not None}
        return {**super().trackables(), **found}

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
        for observe in (True, False):
            self.with_batch.get_concrete_function(
                Minibatch(batch, ()), version, tf.TensorSpec.from_tensor(own_signals), observe
            )

    def _with_batch(
        self,
        minibatch: Minibatch,
        parameter_version: tf.Tensor,
        own_signals: tf.Tensor,
        observe: bool,
    ) -> StepResult:
        gradients, loss, seen = self._in_parts(minibatch, observe)
        sums = _Sums(loss.steps, loss.squared_advantages, loss.kl * loss.steps)
        norm, result = self._step(gradients, own_signals, sums, loss.value_sums, seen)
        lag = tf.cast(parameter_version - minibatch.unrolls.parameter_version, tf.float32)
        return result._replace(stats=_stats(loss, norm, lag))

    def _in_parts(self, minibatch: Minibatch, observe: bool) -> _Learned:
        """Returns what `_learned` does, of --micro_batches parts one after another.

        Only one part's activations are in memory at a time.
        """
        batch_size = minibatch.unrolls.parameter_version.shape[0]
        parts = resolved(self._config.optimizer.micro_batches)
        if parts == 1 or batch_size is None or batch_size % parts:
            return self._learned(minibatch, observe, None)
        split = tf.nest.map_structure(
            lambda t: tf.reshape(t, (parts, batch_size // parts, *t.shape[1:])), minibatch
        )
        # The first step of an unroll is not the result of a decision in it.
        was_reset = minibatch.unrolls.env_outputs.autoreset[:, 1:]
        valid_steps = tf.reduce_sum(tf.cast(tf.logical_not(was_reset), tf.float32))

        def add(part: tf.Tensor, before: _Learned) -> tuple[tf.Tensor, _Learned]:
            chosen = tf.nest.map_structure(lambda t: t[part], split)
            found = self._learned(chosen, observe, valid_steps)
            return part + 1, tf.nest.map_structure(tf.add, before, found)

        start = (tf.constant(0), self._nothing_learned(observe))
        _, learned = tf.while_loop(lambda part, _: part < parts, add, start, parallel_iterations=1)
        return learned

    def _learned(
        self, minibatch: Minibatch, observe: bool, valid_steps: tf.Tensor | None
    ) -> _Learned:
        """Returns gradients, losses and sums of observations of a batch, or of a part of it."""
        unroll = time_major(minibatch.unrolls, self._layout)
        with tf.GradientTape() as tape:
            outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
            loss = losses.compute(
                self._transitions(outputs, unroll),
                self._config.loss,
                self._scales(unroll.level),
                self._target_log_probs(unroll),
                _prepared(minibatch),
                valid_steps,
            )
        gradients = list(tape.gradient(loss.total, self.agent.trainable_variables))
        loss = loss._replace(value_sums=self._by_level(loss.value_sums, unroll.level))
        # The last step of an unroll is the first of the next one.
        seen = tf.nest.map_structure(lambda part: part[:-1], unroll.env_outputs.observation)
        return _Learned(gradients, loss, self._seen(seen, observe))

    def _nothing_learned(self, observe: bool) -> _Learned:
        zeros = Losses(*[tf.constant(0.0)] * len(Losses._fields))
        loss = zeros._replace(value_sums=self._no_values())
        return _Learned(self._no_gradients(), loss, self._seen(None, observe))

    def _no_values(self) -> tf.Tensor:
        return tf.zeros((3, self.agent.num_levels) if self.agent.num_levels else (3,))

    def _without_batch(self, own_signals: tf.Tensor, observe: bool) -> StepResult:
        nothing = _Sums(*[tf.constant(0.0)] * len(_Sums._fields))
        no_values, seen = self._no_values(), self._seen(None, observe)
        return self._step(self._no_gradients(), own_signals, nothing, no_values, seen)[1]

    def _step(
        self,
        gradients: list[tf.Tensor],
        own_signals: tf.Tensor,
        own_sums: _Sums,
        own_value_sums: tf.Tensor,
        own_seen: list[tf.Tensor],
    ) -> tuple[tf.Tensor, StepResult]:
        """Returns the gradient's norm, and the result without statistics."""

        def add(sums: list[tf.Tensor]) -> None:
            self._add_statistics(_Sums(*tf.unstack(sums[0])), sums[1])
            self._observed(sums[2:])

        own = [tf.stack(own_sums), own_value_sums, *own_seen]
        applied = self._apply(gradients, own_signals, own, add)
        sums = _Sums(*tf.unstack(applied.sums[0]))
        kl = sums.kl / sums.steps
        result = StepResult((), applied.group_signals, applied.taken, kl, applied.all_reduce_s)
        return applied.gradient_norm, result

    def _prepare(self, batch: Unroll) -> Nest:
        """Returns ppo's estimates and values of a whole batch, float32 [B, T] each."""
        unroll = time_major(batch, self._layout)
        outputs, _ = self.agent.unroll(unroll.env_outputs, unroll.core_state)
        steps = self._transitions(outputs, unroll)
        found = ppo.estimate(steps, self._config.loss)
        return tuple(map(tf.transpose, (*found, steps.values)))

    def _transitions(self, outputs: NetworkOutput, unroll: Unroll) -> Transitions:
        values = outputs.baseline if self._values is None else self._values.values(outputs.baseline)
        values = self._of_level(values, unroll.level)
        return transitions(
            outputs,
            values,
            unroll.env_outputs,
            unroll.agent_outputs,
            self._config.loss,
            self.agent.distribution,
        )

    def _of_level(self, of_all: tf.Tensor, level: Nest) -> tf.Tensor:
        """Picks the own level's [..., B] out of [..., B, levels]; one level: nothing to pick."""
        if not self.agent.num_levels:
            return of_all
        return tf.reduce_sum(of_all * tf.one_hot(level, self.agent.num_levels), axis=-1)

    def _by_level(self, sums: tf.Tensor, level: Nest) -> tf.Tensor:
        """Adds up [..., B] over the batch: [..., levels], or [...] if there is one level."""
        if not self.agent.num_levels:
            return tf.reduce_sum(sums, axis=-1)
        return tf.matmul(sums, tf.one_hot(level, self.agent.num_levels))

    def _scales(self, level: Nest) -> Scales:
        return Scales(
            entropy_cost=self.entropy_cost,
            advantage_rms=1.0 if self._advantages is None else self._advantages.rms,
            value_std=1.0 if self._values is None else self._of_level(self._values.std, level),
        )

    def _target_log_probs(self, unroll: Unroll) -> tf.Tensor | None:
        if self.target_agent is None:
            return None
        outputs, _ = self.target_agent.unroll(unroll.env_outputs, unroll.core_state)
        return self.agent.distribution.log_prob(
            outputs.policy_logits[:-1], unroll.agent_outputs.action
        )

    def _add_statistics(self, sums: _Sums, value_sums: tf.Tensor) -> None:
        if self._advantages is not None:
            self._advantages.add(sums.steps, tf.constant(0.0), sums.squared_advantages)
        if self._values is not None:
            count, total, squares = tf.unstack(value_sums)
            self._values.add(count, total, squares, self.agent.baseline_layer)


def time_major(batch: Unroll, layout: ObservationLayout) -> Unroll:
    """Returns a batch [B, T, ...] as [T, B, ...], its observations as the network sees them."""
    return batch._replace(
        env_outputs=layout.time_major(batch.env_outputs),
        agent_outputs=tf.nest.map_structure(swap_batch_and_time, batch.agent_outputs),
    )


def _prepared(minibatch: Minibatch) -> tuple[Estimates, tf.Tensor] | None:
    if not minibatch.prepared:
        return None
    advantages, value_targets, values = map(tf.transpose, minibatch.prepared)
    return Estimates(advantages, value_targets), values


def _stats(loss: Losses, gradient_norm: tf.Tensor, lag: tf.Tensor) -> PolicyStats:
    return PolicyStats(
        loss_total=loss.total,
        loss_policy_gradient=loss.policy_gradient,
        loss_baseline=loss.baseline,
        entropy=loss.entropy,
        kl=loss.kl,
        explained_variance=losses.explained_variance(loss.value_error, loss.value_sums),
        advantage_rms=tf.sqrt(loss.squared_advantages / tf.maximum(loss.steps, 1.0)),
        rho_clip_fraction=loss.rho_clip_fraction,
        c_clip_fraction=loss.c_clip_fraction,
        surrogate_clip_fraction=loss.surrogate_clip_fraction,
        gradient_norm=gradient_norm,
        policy_lag_mean=tf.reduce_mean(lag),
        policy_lag_max=tf.reduce_max(lag),
    )
