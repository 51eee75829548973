"""The flags of losses, optimizers and the replay; see `flags`."""

from __future__ import annotations

import dataclasses
from typing import Literal

from impala_tf.config.flag_types import DERIVED, Derived, NotNegative, Positive, Share


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The algorithm and its losses."""

    algorithm: Derived[str] = DERIVED
    """impala, appo, ppo, a3c, dqn or pqn. --help_all describes them at its end. Default: preset.
    module:NAME: a record of yours (see impala_tf.config.algorithms.Algorithm)."""
    discounting: Derived[Share[float]] = DERIVED
    """Discount factor gamma of an agent step. Default: preset."""
    baseline_cost: Derived[NotNegative[float]] = DERIVED
    """Weight of the baseline (value) loss. Default: preset."""
    entropy_cost: Derived[NotNegative[float]] = DERIVED
    """Weight of the entropy bonus, at frame 0. Default: preset."""
    entropy_cost_end: Derived[NotNegative[float]] = DERIVED
    """Weight of the entropy bonus from --schedule_frames on; it changes linearly until then.
    Default: preset; if --entropy_cost is given, the same fraction of it as in the preset."""
    loss_reduction: Derived[Literal["sum", "mean"]] = DERIVED
    """Whether losses are summed or averaged over a batch's steps. dqn and pqn always average.
    Default: preset."""
    reward_clipping: Derived[Literal["abs_one", "soft_asymmetric", "none"]] = DERIVED
    """abs_one: clip to [-1, 1]; soft_asymmetric: 5 tanh(r / 5), negative ones times 0.3 (DMLab).
    Default: preset."""
    advantage_scaling: Derived[Literal["none", "rms", "batch"]] = DERIVED
    """rms: divide by the running root mean square of the advantages; batch: subtract the mean and
    divide by the standard deviation of those in the batch; impala and appo weight the mean by
    pi / mu, as they weight the advantages. Default: preset."""
    value_normalization: Derived[Literal["none", "running"]] = DERIVED
    """running: the network predicts values in units of their running mean and standard deviation
    (PopArt, arXiv 1809.04474), so that large returns need no clipping. Default: preset."""
    surrogate_clipping: Derived[NotNegative[float]] = DERIVED
    """appo, ppo: epsilon of the clipped probability ratio; 0 switches it off. Default: preset."""
    target_update_interval: Derived[NotNegative[int]] = DERIVED
    """dqn: learner updates after which the target network becomes a copy of the network.
    Default: preset."""
    n_step: Derived[Positive[int]] = DERIVED
    """dqn: number of rewards in a target, to which the value of the next state is added. At the end
    of an unroll there are fewer. Default: preset; at most --unroll_length."""
    trace_lambda: Derived[Share[float]] = DERIVED
    """How far estimates look ahead. impala, appo, a3c: decay of V-trace's traces (remark 2 of the
    paper); ppo: lambda of the advantage estimates (arXiv 1506.02438); pqn: lambda of the targets.
    0: one reward and the value of the state that follows; 1: all rewards up to the unroll's end.
    Default: preset."""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, its schedule, and how batches are used."""

    batch_size: Derived[Positive[int]] = DERIVED
    """Unrolls per batch, for each learner (B).
    Default: preset; ppo: one unroll of every environment; a3c: those of one actor."""
    unroll_length: Derived[Positive[int]] = DERIVED
    """Agent steps per unroll (T). Default: preset."""
    updates_per_batch: Derived[Positive[int]] = DERIVED
    """How many times each batch is learned from; ppo, pqn: epochs. Default: preset.
    A larger number learns more from each frame, but takes more time; V-trace corrects for the
    policy lag."""
    ring_batches: Derived[Positive[int]] = DERIVED
    """appo: how many batches are kept. The uses of a batch are spread over the arrivals of this
    many batches, so that consecutive updates use different ones. Default: preset."""
    minibatches: Derived[Positive[int]] = DERIVED
    """ppo, pqn: how many parts, of whole unrolls, a batch is split into; shuffled in every epoch.
    Default: preset; more if actors wait and there are more than two of them."""
    optimizer: Derived[Literal["rmsprop", "adam"]] = DERIVED
    """The optimizer. Default: preset."""
    learning_rate: Derived[Positive[float]] = DERIVED
    """Learning rate at frame 0. Default: preset."""
    learning_rate_schedule: Derived[Literal["linear", "constant", "kl"]] = DERIVED
    """linear: reaches --learning_rate_end at --schedule_frames; constant; kl: as linear, but
    divided by 1.5 while the KL divergence from the policy that acted is above 0.02 nats, and
    multiplied by 1.5 while it is below 0.005; from a tenth of the linear rate to all of it.
    Default: preset."""
    learning_rate_end: Derived[NotNegative[float]] = DERIVED
    """linear, kl: the learning rate from --schedule_frames on.
    Default: preset; if --learning_rate is given, the same fraction of it as in the preset; 0 if the
    preset's schedule is constant."""
    decay: Share[float] = 0.99
    """RMSProp's decay of the squared gradients."""
    momentum: Share[float] = 0.0
    """RMSProp's momentum."""
    epsilon: Derived[Positive[float]] = DERIVED
    """Added to the root of the squared gradients (Adam), or under it (RMSProp). Default: preset."""
    gradients_clipping: Derived[NotNegative[float]] = DERIVED
    """Gradients are clipped to this global norm; 0 switches clipping off. Default: preset."""


@dataclasses.dataclass(frozen=True)
class ReplayConfig:
    """--algorithm=dqn: replay and exploration."""

    replay_capacity: Derived[Positive[int]] = DERIVED
    """How many agent steps, the newest ones, each learner keeps in memory. Default: preset.
    The learner's log says how much memory they take."""
    replay_start_steps: Derived[NotNegative[int]] = DERIVED
    """Agent steps in the replay before anything is learned from it. Default: preset."""
    replay_batch_size: Derived[Positive[int]] = DERIVED
    """Agent steps drawn for each gradient step, for each learner. Default: preset."""
    replay_ratio: Derived[Positive[float]] = DERIVED
    """Gradient steps for each agent step that a learner receives. Default: preset."""
    replay_sampling: Derived[Literal["uniform", "prioritized"]] = DERIVED
    """prioritized: steps with a large error are drawn more often (arXiv 1511.05952), at first by
    the errors that the actors computed. Default: preset."""
