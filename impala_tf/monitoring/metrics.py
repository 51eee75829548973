"""The metrics of a run: the columns of its files, with their meanings.

To add a metric, add a line to _GROUPS, and its value to `learner.policy_step`, `learner.q_step` or
`recorder.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Losses, entropy, norms, lags and fractions are means over the updates since the last row.
_GROUPS: dict[str, dict[str, str]] = {
    "progress": {
        "wall_time_s": "seconds of training; pauses between a stop and a resume do not count",
        "agent_steps": "decisions learned from so far, without resets, over all learners",
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
        "loss_total": "what is minimised: the losses below, weighted by their costs"
        " (dqn, pqn: half the squared TD errors)",
        "loss_policy_gradient": "minus the policy's objective: a sum or mean, see --loss_reduction",
        "loss_baseline": "half the squared error of the baseline, likewise; in units of the"
        " values' deviation with --value_normalization=running",
        "entropy": "entropy of the policy in nats, mean over the steps",
        "entropy_cost": "weight of the entropy in the next update",
        "explained_variance": "of the value targets: 1 is a perfect baseline, 0 a constant"
        " of each level",
        "advantage_rms": "root mean square of the advantages, before scaling; of several"
        " levels, each in units of its values' deviation",
    },
    "q": {
        "q_mean": "dqn, pqn: mean Q-value of the actions that were taken",
        "td_error_mean": "dqn, pqn: mean absolute TD error",
        "replay_steps": "dqn: agent steps in the largest replay of a learner",
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
        "kl": "mean KL(mu || pi) in nats; mu acted, and pi is the policy before the update",
        "surrogate_clip_fraction": "fraction of the steps that appo's or ppo's clip left out",
    },
    "learner": {
        "queue_size": "unrolls that wait for the learner",
        "learner_idle_fraction": "fraction of the time since the last row without a batch",
        "learner_all_reduce_fraction": "fraction of it in all-reduces, with waits for learners",
        "unrolls_refused": "since the start or resume: stale, or not trainable",
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
        "actor_memory_mb": "peak resident memory of an actor and its environments' processes",
    },
}
METRICS: dict[str, str] = {
    name: meaning for metrics in _GROUPS.values() for name, meaning in metrics.items()
}
"""The columns of metrics.csv, in order, with their meanings. Read them by name: more may follow."""
TENSORBOARD_TAGS: dict[str, str] = {
    name: f"{group}/{name.removeprefix(f'{group}_')}"
    for group, metrics in _GROUPS.items()
    for name in metrics
}
"""{metric: its curve in TensorBoard}, e.g. episode_return_mean: episode/return_mean."""

INFO = "info/"
"""The prefix of the columns of --info_metrics, and of their curves in TensorBoard."""


def info_columns(names: Sequence[str]) -> dict[str, str]:
    """Returns the columns of --info_metrics, with their meanings."""
    return {
        f"{INFO}{name}": f"mean of {name} in the last info of the last 100 whole games"
        for name in names
    }


def tag(name: str) -> str:
    """Returns the curve of a metric in TensorBoard."""
    return TENSORBOARD_TAGS.get(name, name)


LEVEL_METRICS: dict[str, str] = {
    "wall_time_s": METRICS["wall_time_s"],
    "environment_frames": METRICS["environment_frames"] + ", over all levels",
    "level": "index of the level in --level_name, from 0",
    "level_name": "its name",
    "episodes": "whole games of this level that have finished so far",
    "episode_return_mean": "mean unclipped return of the last 100 of them",
    "episode_length_mean": "mean length of the last 100 of them, in agent steps",
    "normalized_return_mean": "the mean return between random play (0) and a human's, or the best "
    "possible one on Procgen (1); empty if none is published",
}
"""The columns of metrics-levels.csv, in order, with their meanings."""
EVALUATION_METRICS: dict[str, str] = {
    "wall_time_s": "seconds of training until the checkpoint that played",
    "agent_steps": "agent steps behind it",
    "environment_frames": "environment frames behind it, over all levels",
    "learner_updates": "optimizer steps behind it",
    "level_name": "what was played",
    "played": "unseen levels: generated ones that training does not use; other seeds: than training"
    " has",
    "episodes": "whole games",
    "return_mean": "mean unclipped return of these",
    "return_std": "standard deviation of the returns (of the sample)",
    "return_min": "lowest return",
    "return_max": "highest return",
    "length_mean": "mean length in agent steps",
    "normalized_return_mean": LEVEL_METRICS["normalized_return_mean"],
    "policy": "how actions were chosen, see --test_policy",
    "evaluation_s": "seconds that the games took",
    "protocol": "how the level is played, in words",
}
"""The columns of evaluation.csv, in order, with their meanings."""

Row = Mapping[str, float | int | None]
"""{name of a column: value}. A column that is missing or None has no value yet."""

_BUSY_BELOW = 0.1
"""A process that waits for less than this share of its time is busy."""

ADVICE = {
    "cores": "more cores or machines, or a smaller network",
    "updates": "a smaller network, fewer --updates_per_batch (dqn: a smaller --replay_ratio), a GPU"
    " or more learners",
    "all-reduce": "a larger --batch_size, a faster network between the learners, or fewer learners",
    "environments": "more actors on other machines, or fewer if they share these cores",
    "inference": "more --envs_per_actor, a smaller network, or more actors on other machines",
    "transport": "more --envs_per_actor or a longer --unroll_length, or a faster network link",
}
"""How to make a run faster, by the part that limits it."""


def bottleneck_of(row: Row) -> tuple[str, str] | None:
    """Returns (what limits a run, a key of ADVICE; the numbers that show it); None: unknown.

    If learners spend most of their time in all-reduces, these limit the run. If neither learners
    nor actors wait, the cores do, as on one machine. If learners are busy while actors wait, the
    updates do. Otherwise learners wait for actors, and the limit is what takes most of the actors'
    time. Where learners and actors take turns, actors wait for updates: that wait counts as such.
    """
    idle = row.get("learner_idle_fraction")
    environment = row.get("actor_environment_fraction")
    inference = row.get("actor_inference_fraction")
    wait = row.get("actor_wait_fraction")
    if idle is None or environment is None or inference is None or wait is None:
        return None
    all_reduce = row.get("learner_all_reduce_fraction") or 0.0
    if idle < _BUSY_BELOW and all_reduce > 0.5:
        return "all-reduce", f"{all_reduce:.0%} of the learners' time"
    if max(idle, wait) < _BUSY_BELOW:
        return "cores", f"nobody waits: learner busy {1 - idle:.0%}, actors {1 - wait:.0%}"
    if idle < _BUSY_BELOW:
        return "updates", f"learner busy {1 - idle:.0%}, actors wait {wait:.0%}"
    shares = {
        "updates": min(wait, 1.0 - idle),
        "environments": environment,
        "inference": inference,
        "transport": max(0.0, 1.0 - environment - inference - wait),
    }
    part = max(shares, key=lambda name: shares[name])
    return part, f"{shares[part]:.0%} of the actors' time, learner idle {idle:.0%}"
