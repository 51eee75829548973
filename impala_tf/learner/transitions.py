"""What algorithms see and make: a batch, one entry per transition, time-major; and its uses."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import Any, NamedTuple

from impala_tf.lazy import tf
from impala_tf.types import Nest, Unroll


class Transitions(NamedTuple):
    """Index t is the transition from step t to step t + 1."""

    rewards: tf.Tensor  # float32 [T, B]: clipped as --reward_clipping says
    discounts: tf.Tensor  # float32 [T, B]: gamma, or 0 where the episode ended
    valid: tf.Tensor  # bool [T, B]: False where the environment was reset instead
    entropy: tf.Tensor  # float32 [T, B]: of pi in nats, gradients flow
    kl: tf.Tensor  # float32 [T, B]: KL(mu || pi) in nats, mu being the policy that acted
    log_probs: tf.Tensor  # float32 [T, B]: log pi(a|x), gradients flow
    behaviour_log_probs: tf.Tensor  # float32 [T, B]: log mu(a|x)
    values: tf.Tensor  # float32 [T, B]: V(x_t) in units of the rewards, gradients flow
    bootstrap_value: tf.Tensor  # float32 [B]: V(x_T)


class Estimates(NamedTuple):
    """What an algorithm learns from. Gradients do not flow through any field."""

    advantages: tf.Tensor  # float32 [T, B]: weights of the policy gradient, not scaled
    value_targets: tf.Tensor  # float32 [T, B], in units of the rewards
    # float32 [T, B]: clipped pi / mu that the advantages are already multiplied by; 1: by nothing
    importance: tf.Tensor | float = 1.0


class Objective(NamedTuple):
    """What the policy maximises."""

    values: tf.Tensor  # float32 [T, B], gradients flow
    clipped: tf.Tensor  # bool [T, B]: where the ratio was clipped, so that no gradient flows


class Minibatch(NamedTuple):
    """What one gradient step of a policy learns from."""

    unrolls: Unroll  # [b, ...]
    # float32 [b, T] each: advantages, value targets and values from before the batch's first step,
    # for algorithms that estimate once; else ()
    prepared: Nest = ()


class BatchUses(abc.ABC):
    """How often, and in which order, the batches that arrive are learned from.

    All learners of a group take the same gradient steps at every arrival. One that has no batch
    takes part with a masked one.

    Attributes:
      replay: where the batches are kept; None: nowhere.
      missing_steps: agent steps that have to arrive before anything is learned.
    """

    replay: Any = None
    missing_steps: int = 0

    @abc.abstractmethod
    def arrival(self, batch: Any, learners: int) -> Iterator[tuple[Any, int]]:
        """Yields what each gradient step learns from, and how many learners have something.

        The first is what the algorithm's step takes, or None if this learner has nothing.

        Args:
          batch: what actors sent, [B, ...]; None if this learner has none, which makes no step
            fewer.
          learners: how many have a batch now.
        """

    def learned(self, td_errors: Nest) -> None:
        """Takes the errors of what was yielded last, if the step was taken. By default, nothing."""
        return
