"""IMPALA (arXiv 1802.01561) in one file, with nothing of the project. Read this first.

    python sandbox/one_process.py [--level_name=CartPole-v1] [--steps=150000] [--seed=1]

Two threads act and the main thread learns. Each actor plays with its own copy of the network, which
may be some updates old; V-trace corrects for that. Flat observations and discrete actions only. The
project does the same with processes on many machines, images, memory and other algorithms.

Letters: T steps in an unroll, N environments of an actor, A actions.
"""

from __future__ import annotations

import argparse
import os
import queue
import threading
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gymnasium as gym
import numpy as np
import sonnet as snt
import tensorflow as tf

ACTORS = 2
N, T = 8, 20
DISCOUNT, ENTROPY_COST = 0.99, 0.01
BASELINE_COST = 0.05  # the paper has 0.5 for rewards that are clipped to 1; returns are 100 here
LEARNING_RATE, MAX_GRADIENT_NORM = 5e-3, 40.0


class Unroll(NamedTuple):
    """What an actor saw and did.

    At step t the environment gave observations[t], rewards[t], terminated[t] and reset[t]; then
    actions[t] was chosen. Step 0 is the last step of the unroll before.
    """

    observations: np.ndarray  # float32 [T + 1, N, ...]
    rewards: np.ndarray  # float32 [T + 1, N]
    terminated: np.ndarray  # bool [T + 1, N]: the game ended here
    reset: np.ndarray  # bool [T + 1, N]: a new game began here; the action before was ignored
    actions: np.ndarray  # int64 [T, N]
    logits: np.ndarray  # float32 [T, N, A]: of the policy that acted, mu


class Losses(NamedTuple):
    """Float32 scalars, summed over time and batch."""

    policy_gradient: tf.Tensor
    baseline: tf.Tensor
    entropy: tf.Tensor


class Network(snt.Module):
    """A policy pi(a|x) and a baseline V(x)."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.torso = snt.nets.MLP([64, 64], activation=tf.tanh, activate_final=True)
        self.policy = snt.Linear(num_actions)
        self.baseline = snt.Linear(1)

    def __call__(self, observations: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns logits [..., A] and values [...] of observations [..., D]."""
        hidden = snt.BatchApply(self.torso)(observations)
        logits = snt.BatchApply(self.policy)(hidden)
        return logits, tf.squeeze(snt.BatchApply(self.baseline)(hidden), -1)


def vtrace(
    log_rhos: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    valid: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns vs of equation (1) and the advantages of section 4.2, with rho-bar = c-bar = 1.

    Args:
      log_rhos: float32 [T, N], log pi(a|x) - log mu(a|x).
      discounts: float32 [T, N], gamma, or 0 into the end of a game.
      rewards, values: float32 [T, N].
      bootstrap_value: float32 [N], V of the step after the last one.
      valid: float32 [T, N], 0 where a reset ignored the action: nothing is corrected there.
    """
    # Both thresholds are 1, so the clipped rho of a step is its c, too.
    rhos = tf.minimum(1.0, tf.exp(log_rhos)) * valid
    next_values = tf.concat([values[1:], bootstrap_value[None]], axis=0)
    deltas = rhos * (rewards + discounts * next_values - values)
    correction = tf.zeros_like(bootstrap_value)
    corrections: list[tf.Tensor] = []
    factors = tf.unstack(discounts * rhos)
    for delta, factor in reversed(list(zip(tf.unstack(deltas), factors, strict=True))):
        correction = delta + factor * correction  # v_s - V(x_s), remark 1
        corrections.insert(0, correction)
    vs = values + tf.stack(corrections)
    next_vs = tf.concat([vs[1:], bootstrap_value[None]], axis=0)
    pg_advantages = rhos * (rewards + discounts * next_vs - values)
    return tf.stop_gradient(vs), tf.stop_gradient(pg_advantages)


def compute_losses(logits: tf.Tensor, values: tf.Tensor, unroll: Unroll) -> Losses:
    """Returns the three losses of section 4.2, not weighted by their costs.

    Args:
      logits: float32 [T + 1, N, A], of the learner's policy, pi.
      values: float32 [T + 1, N], of the learner's baseline.
      unroll: what the actor did.
    """
    # Here [T + 1] becomes [T]: index t is now the transition from step t to step t + 1.
    rewards, reset = unroll.rewards[1:], unroll.reset[1:]
    discounts = DISCOUNT * (1.0 - tf.cast(unroll.terminated[1:], tf.float32))
    valid = 1.0 - tf.cast(reset, tf.float32)
    log_policy = tf.nn.log_softmax(logits[:-1])
    log_pi = tf.gather(log_policy, unroll.actions, axis=-1, batch_dims=2)
    log_mu = tf.gather(tf.nn.log_softmax(unroll.logits), unroll.actions, axis=-1, batch_dims=2)
    vs, pg_advantages = vtrace(
        tf.stop_gradient(log_pi - log_mu),
        discounts,
        rewards,
        tf.stop_gradient(values[:-1]),
        tf.stop_gradient(values[-1]),
        valid,
    )
    return Losses(
        policy_gradient=-tf.reduce_sum(valid * log_pi * pg_advantages),
        baseline=0.5 * tf.reduce_sum(valid * (vs - values[:-1]) ** 2),
        entropy=-tf.reduce_sum(valid[..., None] * tf.exp(log_policy) * log_policy),
    )


def number_of_actions(space: gym.Space[Any]) -> int:
    """Returns A of a level with discrete actions."""
    if not isinstance(space, gym.spaces.Discrete):
        raise SystemExit(f"--level_name: this file has discrete actions only, not {space}")
    return int(space.n)


class Learner:
    """The network and its optimizer; `weights` is what actors copy."""

    def __init__(self, network: Network, total_steps: int) -> None:
        self.network, self.total_steps = network, total_steps
        self.learning_rate = tf.Variable(LEARNING_RATE)
        self.optimizer = snt.optimizers.Adam(self.learning_rate)
        self.steps = 0
        self.publish()

    def publish(self) -> None:
        self.weights = [variable.numpy() for variable in self.network.trainable_variables]

    def update(self, unroll: Unroll) -> None:
        """Takes one gradient step."""
        self.learning_rate.assign(LEARNING_RATE * max(0.0, 1.0 - self.steps / self.total_steps))
        self._step(tf.nest.map_structure(tf.constant, unroll))
        self.steps += T * N
        self.publish()

    @tf.function
    def _step(self, unroll: Unroll) -> None:
        with tf.GradientTape() as tape:
            losses = compute_losses(*self.network(unroll.observations), unroll)
            total = (
                losses.policy_gradient
                + BASELINE_COST * losses.baseline
                - ENTROPY_COST * losses.entropy
            )
        variables = self.network.trainable_variables
        gradients, _ = tf.clip_by_global_norm(tape.gradient(total, variables), MAX_GRADIENT_NORM)
        self.optimizer.apply(gradients, variables)


def act(
    learner: Learner, level_name: str, seed: int, unrolls: queue.Queue, over: threading.Event
) -> None:
    """Plays until the run is over; puts (unroll, returns of the games that ended) into the queue.

    Gymnasium resets a game in the step after its end (NEXT_STEP): that step's action is ignored.
    """
    environments = gym.make_vec(level_name, num_envs=N, vectorization_mode="sync")
    network = Network(number_of_actions(environments.single_action_space))
    forward = tf.function(network)
    random = np.random.default_rng(seed)
    observation, _ = environments.reset(seed=seed)
    ended = np.zeros(N, bool)
    first = (observation, np.zeros(N, np.float32), ended, ended)
    sums, returns = np.zeros(N), []
    forward(first[0][None])  # makes the variables
    while not over.is_set():
        for variable, value in zip(network.trainable_variables, learner.weights, strict=True):
            variable.assign(value)
        steps, choices = [first], []
        for _ in range(T):
            logits = forward(steps[-1][0][None])[0][0].numpy()
            actions = np.argmax(logits + random.gumbel(size=logits.shape), axis=-1)
            observation, rewards, terminated, truncated, _ = environments.step(actions)
            sums = np.where(ended, 0.0, sums + rewards)
            steps.append((observation, rewards.astype(np.float32), terminated, ended))
            choices.append((actions, logits))
            ended = terminated | truncated
            returns.extend(sums[ended])
        first = steps[-1]
        fields = [*zip(*steps, strict=True), *zip(*choices, strict=True)]
        unroll = Unroll(*(np.stack(field) for field in fields))
        unrolls.put((unroll, returns))  # waits while the learner is behind
        returns = []


def train(level_name: str, total_steps: int, seed: int) -> float:
    """Trains; returns the mean return of the last 100 games."""
    tf.random.set_seed(seed)
    with gym.make(level_name) as environment:
        network = Network(number_of_actions(environment.action_space))
        network(tf.zeros((1, 1, *(environment.observation_space.shape or ()))))  # makes variables
    learner = Learner(network, total_steps)
    unrolls: queue.Queue = queue.Queue(maxsize=2)
    over = threading.Event()
    for task in range(ACTORS):
        # The last unrolls may find no reader, so nobody waits for these threads.
        arguments = (learner, level_name, seed + task, unrolls, over)
        threading.Thread(target=act, args=arguments, daemon=True).start()
    last_returns: list[float] = []
    while learner.steps < total_steps:
        unroll, returns = unrolls.get()
        last_returns = [*last_returns, *returns][-100:]
        learner.update(unroll)
        if learner.steps % (100 * T * N) == 0 and last_returns:
            print(f"{learner.steps:9,} steps, return {np.mean(last_returns):6.1f}", flush=True)
    over.set()
    return float(np.mean(last_returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--level_name", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=150_000, help="steps of all environments")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    mean_return = train(flags.level_name, flags.steps, flags.seed)
    print(f"mean return of the last 100 games: {mean_return:.1f}")
