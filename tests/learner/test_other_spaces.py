"""Updates on levels with other actions and observations than Atari's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.config import Given
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.types import ActionSpec, EnvironmentSpec, Kind, ObservationSpec
from tests.helpers.unrolls import random_unrolls

VECTOR, IMAGE = ObservationSpec("vector", (3,)), ObservationSpec("image", (7, 7, 3))
DISCRETE = ActionSpec("discrete", (3,))
PARTS = {"image": IMAGE, "direction": VECTOR, "mission": ObservationSpec("text", (6,))}
WORLDS: dict[str, tuple[Kind, Any, ActionSpec]] = {
    "continuous": ("vector", VECTOR, ActionSpec("continuous", (2,))),
    "several choices": ("vector", VECTOR, ActionSpec("multi_discrete", (3, 4))),
    "several parts": ("image", PARTS, DISCRETE),
    "vectors": ("vector", {"0": VECTOR, "1": VECTOR}, DISCRETE),
    "continuous on images": ("image", IMAGE, ActionSpec("continuous", (1,))),
}


def learner_of(spec: EnvironmentSpec, **flags: Any) -> Learner:
    sizes = {"batch_size": 4, "unroll_length": 5, "learning_rate": 0.01}
    given = Given().replace(**sizes, **flags)
    config = configs.resolve(given, spec.kind, spec.actions.kind == "continuous")
    return Learner(agent_of(config.agent, spec), spec, config, LearnerGroup())


@pytest.mark.parametrize(
    ("world", "algorithm", "core"),
    [
        *((world, "appo", "feedforward") for world in WORLDS),
        ("continuous", "ppo", "lstm"),
        ("several parts", "impala", "lstm"),
    ],
)
def test_an_update_changes_every_variable(world: str, algorithm: str, core: str) -> None:
    """A head or a torso without a gradient would stay as it was made."""
    kind, observation, actions = WORLDS[world]
    spec = EnvironmentSpec("World-v0", kind, observation, actions, 0, 1, "")
    learner = learner_of(spec, algorithm=algorithm, core=core, entropy_cost=0.01, minibatches=1)
    agent = learner.agent
    before = [variable.numpy() for variable in agent.trainable_variables]
    unrolls = random_unrolls(unroll_specs(agent, spec, 5), 4)
    for _ in range(3):
        stats = learner.update(tf.nest.map_structure(tf.constant, unrolls))
        assert stats is not None and np.isfinite(stats).all(), stats
    for old, variable in zip(before, agent.trainable_variables, strict=True):
        # Biases of words that no text has, and of units that never fire, may stay.
        if "embed" not in variable.name and "conv" not in variable.name:
            assert np.any(old != variable.numpy()), variable.name


@pytest.mark.parametrize(("outside", "entropy_cost", "end"), [(4.0, -10, 2.0), (-7.0, 10, -5.0)])
def test_a_deviation_beyond_its_range_comes_back(
    outside: float, entropy_cost: float, end: float
) -> None:
    """Outside, it has no gradient: the policy would be almost random, or certain, for ever."""
    spec = EnvironmentSpec("World-v0", *WORLDS["continuous"], 0, 1, "")
    learner = learner_of(spec, algorithm="impala", entropy_cost=entropy_cost, updates_per_batch=1)
    agent = learner.agent
    (log_std,) = (each for each in agent.trainable_variables if "log_std" in each.name)
    log_std.assign(tf.fill(log_std.shape, outside))
    unrolls = tf.nest.map_structure(tf.constant, random_unrolls(unroll_specs(agent, spec, 5), 4))
    found = []
    for _ in range(4):
        learner.update(unrolls)
        found.append(log_std.numpy())
    np.testing.assert_array_equal(found[0], end)
    assert (found[-1] < end if outside > end else found[-1] > end).all(), found
