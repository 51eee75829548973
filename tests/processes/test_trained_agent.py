"""The agent of a checkpoint is the one that the learner has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tree

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.checkpoint.checkpointer import Checkpointer
from impala_tf.checkpoint.compatibility import signature_of
from impala_tf.config import Given
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.processes import players
from impala_tf.processes.common import logdir_of, resolve
from tests.helpers.states import state
from tests.helpers.unrolls import random_unrolls


@pytest.mark.parametrize("normalization", ["running", "none"])
def test_its_baseline_is_in_units_of_the_rewards(tmp_path: Path, normalization: Any) -> None:
    """Its layer predicts in another unit, which the learner's moments decide."""
    flags = {"level_name": "Acrobot-v1", "value_normalization": normalization, "batch_size": 2}
    config, spec = resolve(Given({**flags, "logdir": str(tmp_path)}))
    learner = Learner(agent_of(config.agent, spec), spec, config, LearnerGroup())
    specs = unroll_specs(learner.agent, spec, config.optimizer.unroll_length)
    for seed in range(3):
        learner.update(tree.map_structure(tf.constant, random_unrolls(specs, 2, seed)))
    saved = state(identity=signature_of(config, spec), counters=learner.counters())
    Checkpointer(logdir_of(config).checkpoints, learner.trackables()).save(saved, 3)
    loaded = players.load_checkpoint(config, spec)
    assert loaded.agent is not None
    unroll = tree.map_structure(tf.constant, random_unrolls(specs, 2, 7))
    steps = tree.map_structure(lambda array: tf.constant(array)[:, 0], unroll.env_outputs)
    answers = [
        agent.step(steps, agent.initial_state(2))[0].baseline
        for agent in (learner.agent, loaded.agent)
    ]
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-6)
    is_moved = learner.agent.policy_heads.unit.std.numpy() != 1.0
    assert bool(is_moved) is (normalization == "running")
