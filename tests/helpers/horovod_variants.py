"""Run under horovodrun by tests/learner/test_group.py: two learners of every algorithm."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from impala_tf.agents.agent import unroll_specs
from impala_tf.learner.learner_group import HorovodGroup, LearnerGroup
from impala_tf.types import ObservationSpec
from tests.helpers.horovod_worker import SPEC, B, T, batch, digest, learner

PARTS = {"where": ObservationSpec("vector", (3,)), "mission": ObservationSpec("text", (6,))}
TEXT_SPEC = SPEC._replace(observation=PARTS)
# Everything that depends on more than gradients.
_STATISTICS = {
    "observation_normalization": "elementwise",
    "advantage_scaling": "rms",
    "value_normalization": "running",
    "learning_rate_schedule": "kl",
    "optimizer": "adam",
}
_DQN = {
    "algorithm": "dqn",
    "agent_name": "MLPAgent",
    "replay_start_steps": 0,
    "replay_batch_size": 8,
    "replay_ratio": 2 / (B * T),
    "target_update_interval": 3,
    "observation_normalization": "elementwise",
    "optimizer": "adam",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "impala": {"algorithm": "impala", "updates_per_batch": 2, **_STATISTICS},
    "appo": {
        "algorithm": "appo",
        "updates_per_batch": 2,
        "ring_batches": 3,
        "target_update_interval": 3,
        **_STATISTICS,
    },
    "ppo": {"algorithm": "ppo", **_STATISTICS, "advantage_scaling": "batch"},
    "dqn": _DQN,
    "impala on texts": {"spec": TEXT_SPEC, "algorithm": "impala", **_STATISTICS},
    "dqn on texts": {"spec": TEXT_SPEC, **_DQN},
}


def train_variant(group: LearnerGroup, flags: dict[str, Any]) -> list[str]:
    """Returns digests; learner 1 has no batch for every third update."""
    mine = learner(group, **flags)
    mine.synchronize()
    specs = unroll_specs(mine.agent, flags.get("spec", SPEC), T)
    digests = []
    for update in range(7):
        without = update % 3 == 2
        own = None if without and group.rank == 1 else batch(specs, group.rank, update)
        mine.update(own, [B * T, None if without else B * T])
        digests.append(digest(mine))
    return digests


def main(directory: str) -> None:
    group = HorovodGroup()
    digests = group.gather({name: train_variant(group, flags) for name, flags in VARIANTS.items()})
    if group.rank == 0:
        Path(directory, "result.json").write_text(json.dumps(digests))


if __name__ == "__main__":
    main(sys.argv[1])
