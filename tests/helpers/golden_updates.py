"""Golden updates: seeded unrolls through `Learner.update`, and what the variables are afterwards.

    python -m tests.helpers.golden_updates FILE                    # one learner
    horovodrun -np 2 python -m tests.helpers.golden_updates FILE   # a group of two

FILE gets, for each case, a digest of all variables (parameters, statistics, optimizer slots), how
far each of these parts moved, and whether all learners have the same variables after one more
update, for which only the first one has a batch. To judge a change that must not change updates,
write one FILE before it and one after it, on one machine: the digests must be equal. Between
machines, the last bits differ, so tests/learner/test_golden_updates.py compares how far parts
moved.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from impala_tf import config as configs
from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.agents.n_step_returns import played_steps
from impala_tf.config import Config
from impala_tf.lazy import tf  # imports TensorFlow as runs do, with oneDNN
from impala_tf.learner.actor_gradients import GradientSender
from impala_tf.learner.learner_group import HorovodGroup, LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.types import ActionSpec, ActorReport, EnvironmentSpec, Sent
from tests.helpers.learners import Kept
from tests.helpers.samples import image_spec, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T, UPDATES = 4, 5, 4
VECTORS = vector_spec()
ROBOT = VECTORS._replace(actions=ActionSpec("continuous", (2,)))
IMAGES = image_spec((20, 24, 3))
ATARI = image_spec((84, 84, 4), stacked_frames=4)

_DQN = {
    "algorithm": "dqn",
    "replay_start_steps": 0,
    "replay_batch_size": 8,
    "replay_capacity": 64,
    "replay_ratio": 2 / (B * T),
    "target_update_interval": 3,
}
CASES: dict[str, tuple[EnvironmentSpec, dict[str, Any]]] = {
    "paper": (ATARI, {"preset": "paper", "agent_name": "ResNetLSTMAgent"}),
    "appo, images": (IMAGES, {"algorithm": "appo", "agent_name": "ResNetAgent"}),
    "appo, robot": (ROBOT, {"algorithm": "appo", "agent_name": "SeparateMLPAgent"}),
    "ppo, vectors, LSTM": (VECTORS, {"algorithm": "ppo", "agent_name": "MLPLSTMAgent"}),
    "a3c, vectors, LSTM": (VECTORS, {"algorithm": "a3c", "agent_name": "MLPLSTMAgent"}),
    "pqn, vectors": (VECTORS, {"algorithm": "pqn", "agent_name": "MLPAgent"}),
    "dqn, Atari": (ATARI, {**_DQN, "agent_name": "NatureAgent"}),
}
"""By name: a level, and the flags besides the preset's defaults for it.

Each algorithm, and each kind of network, statistics and head, is in one at least.
"""

OF_TWO = [name for name in CASES if name not in ("paper", "appo, images")]
"""A group adds the all-reduce and joint statistics, which algorithms use and networks do not."""


def make_learner(
    group: LearnerGroup, spec: EnvironmentSpec, flags: dict[str, Any]
) -> tuple[Learner, Config]:
    sizes = {"batch_size": B, "unroll_length": T, "total_environment_frames": 10_000}
    given = configs.Given().replace(**{**sizes, "precision": "float32", **flags})
    config = configs.resolve(given, spec.kind, spec.actions.kind == "continuous")
    tf.random.set_seed(1 + group.rank)  # only `synchronize` makes learners equal
    learner = Learner(agent_of(config.agent, spec), spec, config, group)
    learner.synchronize()
    return learner, config


def make_batch(learner: Learner, spec: EnvironmentSpec, config: Config, seed: list[int]) -> Sent:
    """Returns what actors send for an update: unrolls [B, ...], or a gradient of a3c [1, ...]."""
    unrolls = random_unrolls(unroll_specs(learner.agent, spec, T), B, seed)
    sent: Sent = unrolls
    if config.loss.algorithm == "a3c":
        kept = Kept()
        sender = GradientSender(kept.push, learner.agent, spec, config)
        sender.push(unrolls, [], ActorReport())
        sent = kept.sent[0]
    batch: Sent = tf.nest.map_structure(tf.constant, sent)
    return batch


def run_case(group: LearnerGroup, spec: EnvironmentSpec, flags: dict[str, Any]) -> dict[str, Any]:
    """Returns the digest after the last update, and how each part moved: [length, place].

    The place is the product with a fixed random vector of the length of one.
    """
    learner, config = make_learner(group, spec, flags)
    start = _values(learner)
    for update in range(UPDATES):
        batch = make_batch(learner, spec, config, [group.rank, update])
        learner.update(batch, group.gather(played_steps(batch)))
    end = _values(learner)
    moved = {}
    for part in end:
        change = np.concatenate(
            [
                np.ravel(after).astype(np.float64) - np.ravel(before).astype(np.float64)
                for before, after in zip(start[part], end[part], strict=True)
            ]
        )
        direction = np.random.default_rng(0).normal(size=change.size)
        place = change @ direction / np.linalg.norm(direction)
        moved[part] = [float(f"{value:.6g}") for value in (np.linalg.norm(change), place)]
    batch = make_batch(learner, spec, config, [0, UPDATES])
    played = [played_steps(batch), *[None] * (group.size - 1)]
    learner.update(batch if group.rank == 0 else None, played)
    digests = group.gather(_digest(_values(learner)))
    return {"digest": _digest(end), "same": len(set(digests)) == 1, **moved}


def _digest(values: dict[str, list[np.ndarray]]) -> str:
    data = b"".join(value.tobytes() for part in values.values() for value in part)
    return hashlib.sha256(data).hexdigest()[:16]


def _values(learner: Learner) -> dict[str, list[np.ndarray]]:
    """Returns copies of all variables that updates change, by part."""
    parts = {name: part.variables for name, part in learner.trackables().items()}
    parts["parameters"] = learner.agent.trainable_variables
    return {
        name: [np.array(variable) for variable in variables]
        for name, variables in parts.items()
        if variables
    }


def main(path: str) -> None:
    # With several threads, sums have no fixed order, and their last bits none either.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    size = int(os.environ.get("HOROVOD_SIZE", "1"))
    group = HorovodGroup() if size > 1 else LearnerGroup()
    names = OF_TWO if size > 1 else CASES
    found = {name: run_case(group, *CASES[name]) for name in names}
    if group.rank == 0:
        Path(path).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
