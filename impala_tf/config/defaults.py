"""Defaults that depend on the level or the machine, and how they are filled in."""

from __future__ import annotations

import os
import re
from typing import Any, TypeVar

from impala_tf.config.flags import Config, flat_items, replace
from impala_tf.types import Kind

T = TypeVar("T")

# Atari: table G.1 of the paper. Vectors: measured, see sandbox/cartpole.md.
DEFAULTS_BY_KIND: dict[Kind, dict[str, Any]] = {
    "atari": {
        "agent_name": "SimpleConvNetAgent",
        "total_environment_frames": 200_000_000,
        "learning_rate": 6e-4,
        "epsilon": 0.01,
        "baseline_cost": 0.5,
        "entropy_cost": 0.01,
        "reward_clipping": "abs_one",
        "envs_per_actor": 32,
    },
    "image": {
        "agent_name": "SimpleConvNetAgent",
        "total_environment_frames": 50_000_000,
        "learning_rate": 6e-4,
        "epsilon": 0.01,
        "baseline_cost": 0.5,
        "entropy_cost": 0.01,
        "reward_clipping": "abs_one",
        "envs_per_actor": 8,
    },
    "vector": {
        "agent_name": "MLPAgent",
        "total_environment_frames": 1_500_000,
        "learning_rate": 3e-3,
        "epsilon": 1e-5,
        "baseline_cost": 0.05,
        "entropy_cost": 0.01,
        "reward_clipping": "none",
        "envs_per_actor": 32,
    },
}


def resolve(config: Config, kind: Kind) -> Config:
    """Fills in every flag that depends on the level or the machine; given flags stay."""
    given = dict(flat_items(config))
    chosen = {
        name: value
        for name, value in DEFAULTS_BY_KIND[kind].items()
        if given[name] in (None, "auto")
    }
    if given["num_actors"] is None:
        chosen["num_actors"] = max(1, len(os.sched_getaffinity(0)))
    if given["queue_capacity"] is None:
        chosen["queue_capacity"] = given["batch_size"]
    if given["logdir"] is None:
        agent = chosen.get("agent_name", given["agent_name"])
        chosen["logdir"] = f"runs/{slug(given['level_name'])}-{agent}"
    return replace(config, **chosen)


def resolved(value: T | None) -> T:
    """Returns the value of a flag of a resolved config, for the type checker and for readers.

    Raises:
      ValueError: the flag still has no value: `resolve` was not called.
    """
    if value is None:
        raise ValueError("a flag that depends on the level was read before `resolve`")
    return value


def slug(level_name: str) -> str:
    """Returns a level's name as a folder's name: 'ALE/Pong-v5' -> 'ALE-Pong-v5'."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", level_name).strip("-")
