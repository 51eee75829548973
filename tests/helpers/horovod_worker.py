"""Run under horovodrun by tests/learner/test_group.py: two learners train and write JSON."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.agents.n_step_returns import played_steps
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.learner.learner_group import HorovodGroup, LearnerGroup
from impala_tf.learner.peers import ControlFlags, exchange
from impala_tf.learner.update import Learner
from impala_tf.types import ActionSpec, EnvironmentSpec, ObservationSpec, Unroll
from tests.helpers.states import state
from tests.helpers.unrolls import random_unrolls

SPEC = EnvironmentSpec(
    "World-v0",
    "vector",
    ObservationSpec("vector", (3,)),
    ActionSpec("discrete", (4,)),
    0,
    2,
    "made up",
)
B, T, UPDATES = 4, 5, 20


class MeanOfTwo:
    """A group of one learner with the batches of both: its gradient is their sum."""

    rank, size = 0, 2

    def sum(self, nest: Any, name: str) -> Any:
        return nest


def learner(group: Any, spec: EnvironmentSpec = SPEC, **flags: Any) -> Learner:
    usual = {"preset": "paper", "batch_size": B, "unroll_length": T, "gradients_clipping": 5.0,
             "agent_name": "MLPLSTMAgent"}  # fmt: skip
    given = configs.Given().replace(**{**usual, **flags})
    tf.random.set_seed(1 + group.rank)  # differs, so that only the broadcast makes them equal
    config = configs.resolve(given, "vector")
    return Learner(agent_of(config.agent, spec), spec, config, group)


def batch(specs: Unroll, rank: int, update: int) -> Unroll:
    """Returns unrolls [B, ...] that depend on rank and update only."""
    return tf.nest.map_structure(tf.constant, random_unrolls(specs, B, (rank, update)))


def digest(of: Learner) -> str:
    arrays = [v.numpy().tobytes() for v in (*of.parameters_and_slots(),)]
    return hashlib.sha256(b"".join(arrays)).hexdigest()


def train(group: LearnerGroup, mine: Learner, updates: range) -> list[str]:
    """Returns a digest of parameters and slots after every update."""
    specs = unroll_specs(mine.agent, SPEC, T)
    digests = []
    for update in updates:
        played = [played_steps(batch(specs, rank, update)) for rank in (0, 1)]
        mine.update(batch(specs, group.rank, update), played)
        digests.append(digest(mine))
    return digests


def one_is_late(group: LearnerGroup, mine: Learner) -> float | None:
    """Returns the seconds of an all-reduce to which learner 1 comes 5 s late."""
    batches = [batch(unroll_specs(mine.agent, SPEC, T), group.rank, update) for update in (1, 2)]
    mine.update(batches[0], [B * T, B * T])  # makes the graph, if it is not there yet
    group.gather(None)
    if group.rank == 1:
        time.sleep(5)
    mine.update(batches[1], [B * T, B * T])
    return mine.all_reduce_s


def reference() -> Learner:
    """One learner on the batches of both."""
    alone = learner(MeanOfTwo(), batch_size=2 * B)
    specs = unroll_specs(alone.agent, SPEC, T)
    for update in range(UPDATES):
        both = [batch(specs, rank, update) for rank in (0, 1)]
        played = [played_steps(each) for each in both]
        alone.update(tf.nest.map_structure(lambda *p: tf.concat(p, 0), *both), played)
    return alone


def main(directory: str) -> None:
    group = HorovodGroup()
    first = learner(group)
    before = digest(first)
    first.synchronize()
    digests = train(group, first, range(10))
    checkpoint = Checkpointer(Path(directory), first.trackables())
    if group.rank == 0:
        checkpoint.save(state(counters=first.counters()), first.learner_updates)
    digests += train(group, first, range(10, UPDATES))

    resumed = learner(group)
    saved = None
    if group.rank == 0:
        saved = Checkpointer(Path(directory), resumed.trackables()).restore()
    resumed.restore_counters(group.gather(saved)[0]["counters"])
    resumed.synchronize()
    after_resume = train(group, resumed, range(10, UPDATES))

    joined = learner(group)
    joined.synchronize()
    specs = unroll_specs(joined.agent, SPEC, T)
    own_flags = ControlFlags(group.rank == 1, False, False)
    own = batch(specs, 0, 0) if group.rank == 0 else None
    agreed, played = exchange(group, own_flags, None if own is None else played_steps(own))
    joined.update(own, played)

    found = {
        "rank": group.rank,
        "before": before,
        "digests": digests,
        "after_resume": after_resume,
        "agent_steps": first.agent_steps,
        "played": sum(
            played_steps(batch(specs, rank, update)) for rank in (0, 1) for update in range(UPDATES)
        ),
        "environment_frames": first.environment_frames,
        "resumed_updates": resumed.learner_updates,
        "joined": [digest(joined), joined.agent_steps, agreed.stop],
    }
    found["all_reduce_s"] = one_is_late(group, joined)
    everything = group.gather(found)
    if group.rank == 0:
        alone = reference()
        distance = max(
            float(np.max(np.abs(a - b)))
            for a, b in zip(first.parameters(), alone.parameters(), strict=True)
        )
        moved = max(
            float(np.max(np.abs(a - b)))
            for a, b in zip(first.parameters(), learner(group).parameters(), strict=True)
        )
        result = {"ranks": everything, "distance": distance, "moved": moved}
        Path(directory, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
