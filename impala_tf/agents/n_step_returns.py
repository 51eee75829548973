"""Clipped rewards and n-step returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from impala_tf.types import ActorGradient, EnvOutput, Sent


class NStepReturns(NamedTuple):
    """The terms of the n-step targets of N unrolls; arrays [N, T], index t is decision t.

    The target of decision t is ``returns + discounts * V(x_bootstrap)``. Its window has n steps, or
    fewer: it also ends where an episode ends, before a reset without an episode's end (of a
    restarted environment), and at the end of the unroll.
    """

    returns: np.ndarray  # float32: sum over k < m of gamma^k r_{t + 1 + k}; m steps in the window
    discounts: np.ndarray  # float32: gamma^m; 0 if an episode terminated in the window
    bootstrap: np.ndarray  # int32: t + m, the step whose value is bootstrapped from
    valid: np.ndarray  # bool: False where the environment was reset instead of stepped


def played_steps(sent: Sent) -> int:
    """Returns how many decisions were played: resets ignore the others."""
    if isinstance(sent, ActorGradient):
        return int(sent.num_played[0])
    return int(np.count_nonzero(~np.asarray(sent.env_outputs.autoreset)[:, 1:]))


def n_step_returns(
    env_outputs: EnvOutput, n: int, discounting: float, reward_clipping: str
) -> NStepReturns:
    """Returns the n-step returns of every decision (Sutton and Barto, 2018, equation 7.1).

    Args:
      env_outputs: NumPy arrays [N, T + 1]; only rewards, episode ends and resets are read.
      n: the number of steps of a full window.
      discounting: gamma.
      reward_clipping: the name of a rule of `clip_rewards`.
    """
    rewards = clip_rewards(env_outputs.reward, reward_clipping)
    ended = env_outputs.terminated | env_outputs.truncated
    valid = ~env_outputs.autoreset[:, 1:]
    num_envs, length = valid.shape
    returns = np.zeros((num_envs, length), np.float32)
    discounts = np.ones((num_envs, length), np.float32)
    bootstrap = np.tile(np.arange(length, dtype=np.int32), (num_envs, 1))
    open_ = np.ones_like(valid)  # windows that have not ended yet
    for k in range(min(n, length)):
        # Columns 0..T-1-k: decisions t whose window may hold the transition t + k -> t + k + 1.
        part = np.s_[:, : length - k]
        taken = open_[part] & valid[:, k:]  # a reset is not a transition, and ends the window
        returns[part] += np.where(taken, discounts[part] * rewards[:, k + 1 :], 0.0)
        discount = np.where(env_outputs.terminated[:, k + 1 :], 0.0, discounting)
        discounts[part] *= np.where(taken, discount, 1.0).astype(np.float32)
        bootstrap[part] += taken
        open_[part] = taken & ~ended[:, k + 1 :]
    return NStepReturns(returns, discounts, bootstrap, valid)


def clip_rewards(rewards: Any, clipping: str, xp: Any = np) -> Any:
    """Returns the rewards that losses use (paper, section 5.3.2 and figure D.1), float32.

    Args:
      rewards: float32, of any shape.
      clipping: --reward_clipping.
      xp: the rewards' library: NumPy or TensorFlow.
    """
    if clipping == "abs_one":
        return xp.maximum(xp.minimum(rewards, 1.0), -1.0)
    if clipping == "soft_asymmetric":
        squeezed = xp.tanh(rewards / 5.0)
        return xp.where(rewards < 0.0, 0.3 * squeezed, squeezed) * 5.0
    return rewards
