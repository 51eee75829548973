"""How much memory a run takes, computed without importing TensorFlow."""

from __future__ import annotations

import math

from impala_tf.config.errors import ConfigError
from impala_tf.config.flags import Config
from impala_tf.config.this_machine import memory_here
from impala_tf.types import EnvironmentSpec, ObservationSpec

_ITEM_BYTES = {"uint8": 1, "float32": 4, "int32": 4}
# Each step of an unroll has a reward, four flags and the last action; each decision has an action,
# an error, and what its target is computed from. The tree of priorities has numbers of 8 bytes.
_STEP_BYTES, _DECISION_BYTES, _Q_BYTES, _NODE_BYTES = 12, 21, 4, 8
_UNROLL_BYTES = 20  # its version, its level, and its time of arrival
_ACTOR_BYTES = 90 << 20  # at least, see docs/speed.md


def replay_slots(config: Config) -> int:
    """Returns how many unrolls a replay of --replay_capacity agent steps holds."""
    capacity = config.replay.replay_capacity
    return max(1, capacity // config.optimizer.unroll_length)


def replay_bytes(config: Config, spec: EnvironmentSpec) -> int:
    """Returns how much memory a full replay takes, in each learner.

    Args:
      config: the config of a run with a replay.
      spec: the level's specification.
    """
    length, slots = config.optimizer.unroll_length, replay_slots(config)
    leaves = 1 << max(0, slots * length - 1).bit_length()
    return slots * _unroll(config, spec) + 2 * leaves * _NODE_BYTES


def check_fits(config: Config, spec: EnvironmentSpec) -> str:
    """Checks that this machine has the least memory a run needs; most algorithms' `check_machine`.

    Slightly too large values are not noticed: how much more a run takes depends on its network.

    Args:
      config: the config of the run, or of one of its learners, whose actors are elsewhere.
      spec: the level's specification.

    Returns:
      '', as there is nothing to tell the user.

    Raises:
      ConfigError: this machine, or its container, has less memory.
    """
    process, length = config.process, config.optimizer.unroll_length
    batch_size, unroll = config.optimizer.batch_size, _unroll(config, spec)
    actors, environments = (
        (0, 0) if process.job_name else (process.num_actors, process.envs_per_actor)
    )
    _check(("num_actors", actors), f"{actors:,} processes", actors * _ACTOR_BYTES)
    _check(
        max(("envs_per_actor", environments), ("unroll_length", length), key=lambda flag: flag[1]),
        f"an unroll of {length:,} steps of each of {actors * environments:,} environments",
        actors * environments * unroll,
    )
    _check(
        max(("batch_size", batch_size), ("unroll_length", length), key=lambda flag: flag[1]),
        f"a batch of {batch_size:,} unrolls of {length:,} steps",
        2 * batch_size * unroll,  # the batch, and the queued unrolls that it is made of
    )
    return ""


def _check(flag: tuple[str, int], what: str, needed: int) -> None:
    """Raises ConfigError if this machine or its container has less memory than is needed."""
    has = memory_here()
    if needed > has:
        name, value = flag
        raise ConfigError(
            f"--{name}={value}: {what} would take {needed / 2**30:,.0f} GiB of memory or more, but"
            f" this machine or container has {has / 2**30:,.0f} GiB; give less"
        )


def _unroll(config: Config, spec: EnvironmentSpec) -> int:
    """Returns the bytes of an unroll."""
    length = config.optimizer.unroll_length
    return (
        _observations(spec, length)
        + (length + 1) * _STEP_BYTES
        + length * (_DECISION_BYTES + _Q_BYTES * spec.actions.sizes[0])
        + _UNROLL_BYTES
    )


def _observations(spec: EnvironmentSpec, length: int) -> int:
    """Returns the bytes of an unroll's observations; each stacked frame is stored once."""
    observation = spec.observation
    if isinstance(observation, ObservationSpec) and spec.stacked_frames:
        return (length + spec.stacked_frames) * math.prod(observation.shape) // spec.stacked_frames
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return sum((length + 1) * math.prod(p.shape) * _ITEM_BYTES[p.dtype] for p in parts)
