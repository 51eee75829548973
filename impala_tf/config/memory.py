"""How much memory a replay takes, known before TensorFlow is imported."""

from __future__ import annotations

import math

from impala_tf.config.flags import Config
from impala_tf.types import EnvironmentSpec, ObservationSpec

_ITEM_BYTES = {"uint8": 1, "float32": 4, "int32": 4}
# Of each step of an unroll: reward, four flags, last action; of each decision: action, error, and
# what its target is made of. The tree of priorities is of numbers of 8 bytes.
_STEP_BYTES, _DECISION_BYTES, _Q_BYTES, _NODE_BYTES = 12, 21, 4, 8
_UNROLL_BYTES = 20  # its version, its level, and when it came


def replay_slots(config: Config) -> int:
    """Returns how many unrolls a replay of --replay_capacity agent steps holds."""
    capacity = config.replay.replay_capacity
    return max(1, capacity // config.optimizer.unroll_length)


def replay_bytes(config: Config, spec: EnvironmentSpec) -> int:
    """Returns how much memory a full replay takes, in each learner.

    Args:
      config: the run's, with a replay.
      spec: the level's specification.
    """
    length, slots = config.optimizer.unroll_length, replay_slots(config)
    unroll = (
        _observations(spec, length)
        + (length + 1) * _STEP_BYTES
        + length * (_DECISION_BYTES + _Q_BYTES * spec.actions.sizes[0])
        + _UNROLL_BYTES
    )
    leaves = 1 << max(0, slots * length - 1).bit_length()
    return slots * unroll + 2 * leaves * _NODE_BYTES


def _observations(spec: EnvironmentSpec, length: int) -> int:
    """Returns the bytes of an unroll's observations; each stacked frame is there once."""
    seen = spec.observation
    if isinstance(seen, ObservationSpec) and spec.stacked_frames:
        return (length + spec.stacked_frames) * math.prod(seen.shape) // spec.stacked_frames
    parts = seen.values() if isinstance(seen, dict) else [seen]
    return sum((length + 1) * math.prod(p.shape) * _ITEM_BYTES[p.dtype] for p in parts)
