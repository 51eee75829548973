"""The metrics of a run: their names and meanings, windows and rates.

To add one: a line in _GROUPS, and its value in `learner.policy`, `algorithms.dqn.step` or
`recorder.py`.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from impala_tf.types import Episode

# Losses, entropy, norms, lags and fractions are means over the updates since the last row.
_GROUPS: dict[str, dict[str, str]] = {
    "progress": {
        "wall_time_s": "seconds of training; pauses between a stop and a resume do not count",
        "agent_steps": "decisions learned from so far, over all learners",
        "environment_frames": "environment frames behind them (agent steps x action repeats)",
        "learner_updates": "optimizer steps so far",
    },
    "speed": {
        "agent_steps_per_s": "agent steps per second since the last row, over all learners",
        "frames_per_s": "environment frames per second since the last row, over all learners",
    },
    "episode": {
        "episodes": "whole games finished so far",
        "episode_return_mean": "mean unclipped return of the last 100 whole games",
        "episode_length_mean": "mean length of the last 100 whole games, in agent steps",
    },
    "loss": {
        "loss_total": "the minimised sum of the losses below, weighted by their costs",
        "loss_policy_gradient": "minus the policy's objective: a sum or mean, see --loss_reduction",
        "loss_baseline": "half the squared error of the baseline, likewise",
        "entropy": "entropy of the policy in nats, mean over the steps",
        "entropy_cost": "weight of the entropy in the next update",
        "explained_variance": "of the value targets: 1 is a perfect baseline, 0 a constant",
        "advantage_rms": "root mean square of the advantages, before scaling",
    },
    "q": {
        "q_mean": "dqn: mean Q-value of the actions that were taken",
        "td_error_mean": "dqn: mean size of the errors of the n-step targets",
        "replay_steps": "dqn: agent steps in the fullest replay of a learner",
    },
    "optimizer": {
        "gradient_norm": "global norm of the gradients before clipping",
        "learning_rate": "learning rate of the next update",
    },
    "lag": {
        "policy_lag_mean": "mean age of the parameters that acted, in learner updates",
        "policy_lag_max": "maximum age of the parameters that acted, in learner updates",
        "rho_clip_fraction": "fraction of the importance weights above rho-bar, 1",
        "c_clip_fraction": "fraction of the importance weights above c-bar, 1",
        "kl": "mean KL divergence of the policy from the one that acted, in nats",
        "surrogate_clip_fraction": "fraction of the steps that appo's or ppo's clip left out",
    },
    "learner": {
        "queue_size": "unrolls that wait for the learner",
        "learner_idle_fraction": "fraction of the time since the last row without a batch",
        "learner_all_reduce_fraction": "fraction of it in all-reduces, waiting for learners, too",
        "unrolls_refused": "since the start or resume: stale (--max_policy_lag), or not trainable",
        "unrolls_stale": "since the start or resume, where actors wait for updates: came too late",
        "updates_skipped": "since the start or resume: gradients that were not finite",
    },
    "actor": {
        "actor_environment_fraction": "fraction of the actors' time in their environments",
        "actor_inference_fraction": "fraction of the actors' time in the network",
        "actor_wait_fraction": "fraction of the actors' time waiting for the learner",
    },
    "memory": {
        "learner_memory_mb": "peak resident memory of a learner, in MiB (the largest learner's)",
        "actor_memory_mb": "the same of an actor, with the processes of its environments",
    },
}
METRICS: dict[str, str] = {
    name: meaning for metrics in _GROUPS.values() for name, meaning in metrics.items()
}
"""The columns of metrics.csv, in order, with their meanings. Read by name: more may follow."""
TENSORBOARD_TAGS: dict[str, str] = {
    name: f"{group}/{name.removeprefix(f'{group}_')}"
    for group, metrics in _GROUPS.items()
    for name in metrics
}
"""{metric: its curve in TensorBoard}, e.g. episode_return_mean: episode/return_mean."""

Row = Mapping[str, float | int | None]
"""{name in METRICS: value}; a name that is missing or None has no value yet."""


class EpisodeWindow:
    """Counts finished games and averages the last 100."""

    def __init__(self) -> None:
        self._count = 0
        self._last: deque[Episode] = deque(maxlen=100)

    def add(self, episode: Episode) -> None:
        """Counts a finished game."""
        self._count += 1
        self._last.append(Episode(float(episode.episode_return), int(episode.episode_length)))

    def row(self) -> dict[str, float | int | None]:
        """Returns the episode metrics; the means are None before the first game has finished."""
        return {
            "episodes": self._count,
            "episode_return_mean": _mean([e.episode_return for e in self._last]),
            "episode_length_mean": _mean([e.episode_length for e in self._last]),
        }

    def state(self) -> dict[str, Any]:
        """Returns the window as JSON-able values, for a checkpoint."""
        return {"count": self._count, "last": [list(episode) for episode in self._last]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self._count = state["count"]
        self._last.clear()
        self._last.extend(Episode(*episode) for episode in state["last"])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


class Rates:
    """Agent steps and frames per second between calls of `row`."""

    def __init__(
        self, agent_steps: int, environment_frames: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts to measure now, at the given counts (not 0 in a resumed run)."""
        self._clock = clock
        self._last = (clock(), agent_steps, environment_frames)

    def row(self, agent_steps: int, environment_frames: int) -> dict[str, float | int | None]:
        """Returns the speed metrics since the last call; None if no time has passed."""
        before, steps_before, frames_before = self._last
        self._last = (self._clock(), agent_steps, environment_frames)
        elapsed = self._last[0] - before
        if elapsed <= 0:
            return {"agent_steps_per_s": None, "frames_per_s": None}
        return {
            "agent_steps_per_s": (agent_steps - steps_before) / elapsed,
            "frames_per_s": (environment_frames - frames_before) / elapsed,
        }
