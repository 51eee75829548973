"""--preset: the values of the flags that are not given, by preset, kind of level and algorithm.

Every flag of a preset is DERIVED in `flags`, so that given flags can be told apart.
"""

from __future__ import annotations

from typing import Any

from impala_tf.config.algorithms import Flags, algorithm
from impala_tf.types import Kind

# Table G.1 of the paper. Flags that it does not name (of appo, ppo) have no effect with it.
_PAPER: Flags = {
    "algorithm": "impala",
    "total_environment_frames": 50_000_000,
    "schedule_frames": None,
    "agent_name": "SimpleConvNetAgent",
    "observation_normalization": "none",
    "initialization": "default",
    "heads": "policy",
    "layer_norm": False,
    "discounting": 0.99,
    "trace_lambda": 1.0,
    "baseline_cost": 0.5,
    "entropy_cost": 0.01,
    "entropy_cost_end": 0.01,
    "loss_reduction": "sum",
    "reward_clipping": "abs_one",
    "advantage_scaling": "none",
    "value_normalization": "none",
    "surrogate_clipping": 0.2,
    "target_update_interval": 0,
    "n_step": 3,
    "batch_size": 32,
    "unroll_length": 20,
    "updates_per_batch": 1,
    "ring_batches": 1,
    "minibatches": 1,
    "optimizer": "rmsprop",
    "learning_rate": 6e-4,
    "learning_rate_schedule": "linear",
    "learning_rate_end": 0.0,
    "epsilon": 0.01,
    "gradients_clipping": 40.0,
    "replay_capacity": 200_000,
    "replay_start_steps": 20_000,
    "replay_batch_size": 128,
    "replay_ratio": 1 / 32,
    "replay_sampling": "prioritized",
    "envs_per_actor": 8,
}
# Vectors are not in the paper: measured, see sandbox/vectors.md.
_PAPER_VECTOR: Flags = {
    "agent_name": "MLPAgent",
    "total_environment_frames": 1_500_000,
    "learning_rate": 3e-3,
    "epsilon": 1e-5,
    "baseline_cost": 0.05,
    "reward_clipping": "none",
    "envs_per_actor": 32,
}

# Measured on two cores, see sandbox/atari.md.
_TUNED: Flags = {
    **_PAPER,
    "algorithm": "appo",
    "agent_name": "ShallowConvNetAgent",
    "observation_normalization": "elementwise",
    "initialization": "orthogonal",
    "trace_lambda": 0.95,
    "loss_reduction": "mean",
    "advantage_scaling": "rms",
    "batch_size": 16,
    "unroll_length": 32,
    "updates_per_batch": 2,
    "ring_batches": 4,
    "optimizer": "adam",
    "learning_rate": 5e-4,
    "learning_rate_end": 5e-5,
    "epsilon": 1e-5,
    "gradients_clipping": 1.0,
}
_TUNED_IMAGE: Flags = {
    **_TUNED,
    "total_environment_frames": 10_000_000,
    "schedule_frames": 2_000_000,
    # Nothing is known of the size of their rewards: those of Procgen reach 10.
    "reward_clipping": "none",
    "value_normalization": "running",
}
_TUNED_VECTOR: Flags = {
    "agent_name": "MLPAgent",
    "total_environment_frames": 1_500_000,
    "reward_clipping": "none",
    "value_normalization": "running",
    "unroll_length": 20,
    "learning_rate": 2.5e-3,
    "learning_rate_end": 2.5e-4,
    "envs_per_actor": 32,
}

PRESETS: dict[str, dict[Kind, Flags]] = {
    "tuned": {
        "atari": {
            **_TUNED,
            "total_environment_frames": 20_000_000,
            # A longer run needs no longer schedule: how much a frame teaches does not depend on the
            # rest.
            "schedule_frames": 8_000_000,
            "envs_per_actor": 16,
        },
        "procgen": {
            **_TUNED_IMAGE,
            "agent_name": "ResNetAgent",
            "total_environment_frames": 2_000_000,
        },
        "image": _TUNED_IMAGE,
        "vector": {**_TUNED, **_TUNED_VECTOR},
    },
    "paper": {
        "atari": {**_PAPER, "total_environment_frames": 200_000_000, "envs_per_actor": 32},
        "procgen": _PAPER,
        "image": _PAPER,
        "vector": {**_PAPER, **_PAPER_VECTOR},
    },
}
"""{preset: {kind: {flag: value}}}: all have the same flags."""

# A Gaussian's entropy has no upper limit: a bonus would make its deviation grow without end.
_CONTINUOUS: Flags = {
    "entropy_cost": 0.0,
    "entropy_cost_end": 0.0,
    "observation_normalization": "elementwise",
}
# Of images, with the tuned preset's own algorithm: a gradient step for every 64 agent steps, for
# the same amount of work (sandbox/atari.md, images.md). Each gradient step has a fixed cost, so
# this would slow down a learner of many actors.
_SMALL_BATCHES: Flags = {
    "batch_size": 4,
    "ring_batches": 16,
    "learning_rate": 3.5e-4,
    "learning_rate_end": 7e-5,
}
_MANY_ACTORS = 16
# Vectors with continuous actions, with the tuned preset's own algorithm. Measured on HalfCheetah,
# Hopper and Walker2d (sandbox/vectors.md). A robot's step is cheap, so a gradient step for every 64
# of them pays off. With a discount of 0.99, a robot that runs fast but falls after 400 steps is as
# good as one that stays up for 600; with 0.995, some only learn to stand.
_ROBOTS: Flags = {
    "agent_name": "SeparateMLPAgent",
    "discounting": 0.993,
    "total_environment_frames": 2_000_000,
    "envs_per_actor": 8,
    "batch_size": 8,
    "unroll_length": 64,
    "updates_per_batch": 8,
    "ring_batches": 8,
    "learning_rate": 7e-4,
    "learning_rate_end": 0.0,
}
# Other vectors. Once the pole stands, advantages are noise that is scaled up to 1. With a learning
# rate that falls with the frames alone, some runs then forget what they learned.
_VECTORS: Flags = {"learning_rate_schedule": "kl"}


def values(
    preset: str, kind: Kind, name: str | None, continuous: bool = False, actors: int = 1
) -> dict[str, Any]:
    """Returns {flag: value} of a preset for a kind of level.

    `name` is the given algorithm, None the preset's own; `continuous` is of the level's actions;
    each learner has `actors`.
    """
    found = dict(PRESETS[preset][kind])
    is_its_own = name in (None, found["algorithm"])
    if continuous:
        found.update(_CONTINUOUS)
    if preset == "tuned" and is_its_own and kind == "vector":
        found.update(_ROBOTS if continuous else _VECTORS)
    if actors < _MANY_ACTORS and following_actors(preset, kind, name):
        found.update(_SMALL_BATCHES)
    if not is_its_own:
        found.update(algorithm(str(name)).defaults_on(kind, continuous), algorithm=name)
    return found


def following_actors(preset: str, kind: Kind, name: str | None) -> tuple[str, ...]:
    """Returns the flags whose values depend on the number of actors. For the Args, see `values`."""
    is_tuned = preset == "tuned" and name in (None, PRESETS[preset][kind]["algorithm"])
    return tuple(_SMALL_BATCHES) if is_tuned and kind != "vector" else ()
