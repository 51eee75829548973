"""The memory of a batch's preparation: it must not grow with the number of actors."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.environments.observations import layout_of
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.policy_step import PolicyStep
from impala_tf.types import EnvOutput, Nest, NetworkOutput
from tests.helpers.samples import randomize, resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T = 3073, 4  # few steps are seen at once
SPEC = vector_spec()._replace(tasks=("A-v0", "B-v0"))


def prepared(minibatches: int) -> tuple[list[np.ndarray], set[int]]:
    """Returns what a batch's minibatches need, and how many unrolls the network saw at a time."""
    config = resolved_config(
        preset="tuned",
        algorithm="ppo",
        agent_name="MLPLSTMAgent",
        batch_size=B,
        unroll_length=T,
        minibatches=minibatches,
    )
    agent = agent_of(config.agent, SPEC)
    randomize(agent)
    step = PolicyStep(agent, layout_of(SPEC), config, LearnerGroup())
    sizes, unroll = set(), agent.unroll

    def watched(env_outputs: EnvOutput, core_state: Nest) -> tuple[NetworkOutput, Nest]:
        sizes.add(int(env_outputs.reward.shape[1]))
        return unroll(env_outputs, core_state)

    agent.unroll = watched  # type: ignore[method-assign]
    unrolls = random_unrolls(unroll_specs(agent, SPEC, T), B, 1)
    unrolls = unrolls._replace(level=np.arange(B, dtype=np.int32) % len(SPEC.tasks))
    found = step.prepare(tf.nest.map_structure(tf.constant, unrolls))
    return [each.numpy() for each in found], sizes


def test_the_network_never_sees_more_than_a_minibatch() -> None:
    """Of the whole batch, its activations would be tens of GB with many actors."""
    whole, at_once = prepared(1)
    in_groups, sizes = prepared(3)
    assert at_once == {B} and sizes == {1024, 1025}
    for ours, theirs in zip(in_groups, whole, strict=True):
        assert ours.shape == (B, T)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
