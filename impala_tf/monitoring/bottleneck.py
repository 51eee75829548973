"""Finds the part of a run that limits its speed, from a row of metrics."""

from __future__ import annotations

from impala_tf.monitoring.metrics import Row

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
