"""Run under horovodrun by tests/learner/test_group.py: learners train dqn on images, write JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.learner.group import HorovodGroup
from impala_tf.learner.update import Learner
from impala_tf.types import Unroll
from tests.helpers.horovod_worker import digest
from tests.helpers.samples import image_spec, resolved_config
from tests.helpers.unrolls import random_unrolls

SHAPE = (40, 40, 1)  # Catch's
SPEC = image_spec(SHAPE, num_actions=3)
B, T, ARRIVALS = 4, 5, 6


def batch(specs: Unroll, rank: int, arrival: int) -> Unroll:
    """Returns unrolls of grey images, those of each learner of another brightness."""
    unrolls = random_unrolls(specs, B, (rank, arrival))
    shape = unrolls.env_outputs.observation.shape
    noise = np.random.default_rng((rank, arrival)).integers(0, 50, shape)
    images = (60 * (1 + rank) + noise).astype(np.uint8)
    env_outputs = unrolls.env_outputs._replace(observation=images)
    return unrolls._replace(env_outputs=env_outputs, td_errors=np.abs(unrolls.td_errors))


def main(directory: str) -> None:
    group = HorovodGroup()
    config = resolved_config(
        preset="tuned",
        algorithm="dqn",
        agent_name="ShallowConvNetAgent",
        observation_normalization="elementwise",
        batch_size=B,
        unroll_length=T,
        # Learning begins with the third arrival.
        replay_start_steps=3 * B * T,
        replay_batch_size=8,
        replay_ratio=1 / (B * T),
        replay_capacity=1000,
    )
    tf.random.set_seed(group.rank)
    learner = Learner(agent_of(config.agent, SPEC), SPEC, config, group)
    learner.synchronize()
    # As if all but 4 arrivals of each learner had been before.
    steps = config.agent.pixel_statistics_steps - 4 * group.size * B * T
    learner.restore_counters({**learner.counters(), "agent_steps": steps})
    specs = unroll_specs(learner.agent, SPEC, T)
    seen, updates = [], []
    for arrival in range(ARRIVALS):
        has_batch = [arrival != 1 or rank != 1 for rank in range(group.size)]
        if not has_batch[group.rank]:  # so that arrival 4 is observed, too
            learner.update(None, has_batch)
        else:
            unrolls = batch(specs, group.rank, arrival)
            learner.update(tf.nest.map_structure(tf.constant, unrolls), has_batch)
            if arrival < 5:
                seen.append(unrolls.env_outputs.observation[:, :-1].reshape(-1, *SHAPE))
        updates.append(learner.learner_updates)
    normalizer = learner.agent.observation_normalizer
    assert normalizer is not None
    images = np.concatenate(seen).astype(np.float64)
    found: dict[str, Any] = {
        "mean": normalizer.mean.numpy().tolist(),
        "std": (1 / normalizer.inverse_std.numpy()).tolist(),
        "count": len(images),
        "sums": images.sum(0).tolist(),
        "squares": np.square(images).sum(0).tolist(),
        "updates": updates,
        "digest": digest(learner),
    }
    everything = group.gather(found)
    if group.rank == 0:
        Path(directory, "result.json").write_text(json.dumps(everything))


if __name__ == "__main__":
    main(sys.argv[1])
