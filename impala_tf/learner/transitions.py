"""The interface of algorithms: transitions, estimates, objectives, and the uses of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from impala_tf.lazy import tf
from impala_tf.types import Nest, Unroll


class Transitions(NamedTuple):
    """The transitions of a batch, time-major. Index t is the transition from step t to t + 1."""

    rewards: tf.Tensor  # float32 [T, B]: clipped by --reward_clipping
    discounts: tf.Tensor  # float32 [T, B]: gamma, or 0 where the episode terminated
    valid: tf.Tensor  # bool [T, B]: False where the environment was reset instead of stepped
    entropy: tf.Tensor  # float32 [T, B]: of pi in nats, gradients flow
    kl: tf.Tensor  # float32 [T, B]: KL(mu || pi) in nats; mu is the behaviour policy
    log_probs: tf.Tensor  # float32 [T, B]: log pi(a|x), gradients flow
    behaviour_log_probs: tf.Tensor  # float32 [T, B]: log mu(a|x)
    values: tf.Tensor  # float32 [T, B]: V(x_t) in units of the rewards, gradients flow
    bootstrap_value: tf.Tensor  # float32 [B]: V(x_T)


class Estimates(NamedTuple):
    """An algorithm's estimates. Gradients do not flow through any field."""

    advantages: tf.Tensor  # float32 [T, B]: weights of the policy gradient, before scaling
    value_targets: tf.Tensor  # float32 [T, B], in units of the rewards
    # float32 [T, B]: the clipped pi / mu by which the advantages are already multiplied; 1 if none
    importance: tf.Tensor | float = 1.0


class Objective(NamedTuple):
    """The objective that the policy maximises."""

    values: tf.Tensor  # float32 [T, B], gradients flow
    clipped: tf.Tensor  # bool [T, B]: where the ratio was clipped, so that no gradient flows


class Minibatch(NamedTuple):
    """The input of one gradient step on unrolls."""

    unrolls: Unroll  # [b, ...]
    # For algorithms that estimate once per batch, from before the batch's first gradient step:
    # the fields of Estimates (of a policy), or targets (of Q-values), float32 [b, T] each; else ().
    prepared: Nest = ()


class BatchUses:
    """How often and in which order batches are used; here each once.

    All learners of a group take the same number of gradient steps at every arrival. A learner
    without a batch takes part with a masked one.

    Attributes:
      replay: the replay buffer; None if there is none.
      missing_steps: the number of agent steps that must still arrive before learning starts.
    """

    replay: Any = None
    missing_steps: int = 0

    def arrival(self, batch: Any, learners: int) -> Iterator[tuple[Any, int]]:
        """Yields, for each gradient step, its input and how many learners have one.

        The input is what the algorithm's step takes, or None if this learner has none.

        Args:
          batch: what actors sent, [B, ...]; None if this learner has none, which does not change
            the number of steps.
          learners: the number of learners that have a batch now.
        """
        yield batch, learners

    def learned(self, td_errors: Nest) -> None:
        """Takes the TD errors of the last input, if its step was taken. By default, nothing."""
        return
