"""A batch in parts, one after another, gives the update of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.agents.agent import Agent, agent_of, unroll_specs
from impala_tf.config import Given
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.policy_step import PolicyStats
from impala_tf.learner.update import Learner
from impala_tf.types import EnvironmentSpec, EnvOutput
from tests.helpers.samples import image_spec, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T = 6, 4


def updated(
    monkeypatch: pytest.MonkeyPatch, spec: EnvironmentSpec, parts: int, **flags: Any
) -> tuple[list[np.ndarray], list[PolicyStats]]:
    """Returns the parameters and statistics of a learner after three batches."""
    given = {"batch_size": B, "unroll_length": T, **flags}
    config = configs.resolve(Given().replace(**given), spec.kind)
    tf.random.set_seed(1)
    learner = Learner(agent_of(config.agent, spec), spec, config, LearnerGroup())
    monkeypatch.setattr(configs, "micro_batches", lambda config: parts)
    specs = unroll_specs(learner.agent, spec, T)
    stats = []
    for seed in range(3):
        unrolls = random_unrolls(specs, B, seed)
        if spec.tasks:
            unrolls = unrolls._replace(level=np.arange(B, dtype=np.int32) % len(spec.tasks))
        found = learner.update(tf.nest.map_structure(tf.constant, unrolls))
        stats.append(found)
    return [v.numpy() for v in learner.parameters_and_slots()], stats


TWO_LEVELS = vector_spec()._replace(tasks=("A-v0", "B-v0"))


@pytest.mark.parametrize(
    ("spec", "flags"),
    [
        (vector_spec(), {"preset": "paper", "agent_name": "MLPLSTMAgent"}),
        (TWO_LEVELS, {"preset": "tuned", "observation_normalization": "elementwise"}),
        (image_spec((20, 20, 4), 4), {"preset": "tuned", "target_update_interval": 2}),
    ],
)
def test_parts_add_up_to_the_whole_batch(
    spec: EnvironmentSpec, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some steps are resets, so parts have different numbers of valid steps."""
    whole, in_parts = (updated(monkeypatch, spec, parts, **flags) for parts in (1, 3))
    for ours, theirs in zip(in_parts[0], whole[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)
    for part_stats, stats in zip(in_parts[1], whole[1], strict=True):
        for name, ours, theirs in zip(stats._fields, part_stats, stats, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-4, err_msg=name)


def test_a_part_needs_the_memory_of_its_own_unrolls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    whole = Agent.unroll

    def unroll(self: Agent, env_outputs: EnvOutput, *rest: Any, **options: Any) -> Any:
        seen.add(env_outputs.reward.shape[1])
        return whole(self, env_outputs, *rest, **options)

    monkeypatch.setattr(Agent, "unroll", unroll)
    updated(monkeypatch, vector_spec(), 3, preset="paper")
    assert max(seen) == B // 3


def test_a_batch_is_not_split_if_that_would_change_the_update() -> None:
    """Each part would be scaled by its own advantages."""
    for scaling, parts in (("rms", 3), ("batch", 1)):
        flags = {"agent_name": "ResNetAgent", "batch_size": 12, "advantage_scaling": scaling}
        assert configs.micro_batches(configs.resolve(Given(flags), "atari")) == parts
