"""What a learner does on a GPU, here compiled for the CPU: the same, in fewer operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import Agent, agent_of, unroll_specs
from impala_tf.config import Config
from impala_tf.learner import device
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.update import Learner
from impala_tf.types import EnvironmentSpec, ObservationSpec
from tests.helpers.learners import SPEC, B, config
from tests.helpers.samples import image_spec, randomize, vector_spec
from tests.helpers.unrolls import random_unrolls

TEXT = vector_spec()._replace(observation=ObservationSpec("text", (6,)))
IMAGES = image_spec((24, 24, 3))


def trained(agent: Agent, spec: EnvironmentSpec, settings: Config) -> list[np.ndarray]:
    """Returns the parameters that actors would get after three batches."""
    learner = Learner(agent, spec, settings, LearnerGroup())
    learner.compile()
    specs = unroll_specs(agent, spec, settings.optimizer.unroll_length)
    for seed in range(3):
        learner.update(tf.nest.map_structure(tf.constant, random_unrolls(specs, B, seed)))
    return learner.parameters()


@pytest.mark.parametrize(
    ("agent_name", "spec", "flags"),
    [
        ("MLPLSTMAgent", SPEC, {"algorithm": "appo"}),
        ("MLPAgent", SPEC, {"algorithm": "ppo", "minibatches": 2, "advantage_scaling": "batch"}),
        ("ResNetAgent", IMAGES, {"algorithm": "impala"}),
        ("MLPAgent", TEXT, {"algorithm": "impala"}),
    ],
    ids=["appo", "ppo", "images", "text"],
)
def test_a_learner_on_a_gpu_learns_the_same(
    agent_name: str,
    spec: EnvironmentSpec,
    flags: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = config(agent_name=agent_name, **flags)
    agents = [agent_of(settings.agent, spec) for _ in range(2)]
    for agent in agents:
        randomize(agent)
    expected = trained(agents[0], spec, settings)
    monkeypatch.setattr(device, "on_gpu", lambda: True)
    got = trained(agents[1], spec, settings)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
