"""The memory of a batch's preparation: it must not grow with the number of actors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.agent import agent_of, unroll_specs
from impala_tf.algorithms import impala
from impala_tf.config import algorithm
from impala_tf.environments.observations import layout_of
from impala_tf.learner.batch_uses import Minibatch
from impala_tf.learner.learner_group import LearnerGroup
from impala_tf.learner.policy_step import PolicyStep
from impala_tf.types import EnvironmentSpec, EnvOutput, Nest, NetworkOutput
from tests.helpers.samples import randomize, resolved_config, vector_spec
from tests.helpers.unrolls import random_unrolls

B, T = 3073, 4  # few steps are seen at once
TWO_LEVELS = vector_spec()._replace(tasks=("A-v0", "B-v0"))


def prepared(
    spec: EnvironmentSpec, minibatches: int, **flags: Any
) -> tuple[list[np.ndarray], set[int]]:
    """Returns what a batch's minibatches need, and how many unrolls the network saw at a time."""
    given = {"preset": "tuned", "batch_size": B, "unroll_length": T, "minibatches": minibatches}
    config = resolved_config(**given, **flags)
    agent = agent_of(config.agent, spec)
    randomize(agent)
    make_step = algorithm(config.loss.algorithm).step or PolicyStep
    step: Any = make_step(agent, layout_of(spec), config, LearnerGroup())
    sizes, unroll = set(), agent.unroll

    def watched(env_outputs: EnvOutput, core_state: Nest) -> tuple[NetworkOutput, Nest]:
        sizes.add(int(env_outputs.reward.shape[1]))
        return unroll(env_outputs, core_state)

    agent.unroll = watched  # type: ignore[method-assign]
    unrolls = random_unrolls(unroll_specs(agent, spec, T), B, 1)
    if spec.tasks:
        unrolls = unrolls._replace(level=np.arange(B, dtype=np.int32) % len(spec.tasks))
    found = step.prepare(tf.nest.map_structure(tf.constant, unrolls))
    return [each.numpy() for each in found], sizes


@pytest.mark.parametrize(
    ("spec", "flags"),
    [
        (TWO_LEVELS, {"algorithm": "ppo", "agent_name": "MLPLSTMAgent"}),
        (vector_spec(), {"algorithm": "pqn"}),
    ],
)
def test_the_network_never_sees_more_than_a_minibatch(
    spec: EnvironmentSpec, flags: dict[str, Any]
) -> None:
    """Of the whole batch, its activations would be tens of GB with many actors."""
    whole, at_once = prepared(spec, 1, **flags)
    in_groups, sizes = prepared(spec, 3, **flags)
    assert at_once == {B} and sizes == {1024, 1025}
    for ours, theirs in zip(in_groups, whole, strict=True):
        assert ours.shape == (B, T)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


IN_EACH_STEP = dataclasses.replace(impala.ALGORITHM)
ONCE = dataclasses.replace(impala.ALGORITHM, estimates_once=True)


def test_estimates_that_are_made_before_have_the_same_gradient() -> None:
    """Without V-trace's weights, --advantage_scaling=batch subtracted the mean of other numbers."""
    spec = vector_spec()
    gradients = []
    for name in ("IN_EACH_STEP", "ONCE"):
        config = resolved_config(
            preset="tuned", batch_size=8, unroll_length=5, minibatches=1,
            algorithm=f"{__name__}:{name}", advantage_scaling="batch",
        )  # fmt: skip
        agent = agent_of(config.agent, spec)
        randomize(agent)
        step = PolicyStep(agent, layout_of(spec), config, LearnerGroup())
        unrolls = random_unrolls(unroll_specs(agent, spec, 5), 8, 1)
        batch = tf.nest.map_structure(tf.constant, unrolls)
        ready = Minibatch(batch, step.prepare(batch) if name == "ONCE" else ())
        gradients.append([each.numpy() for each in step.gradients_of(ready)[0]])
    for each, once in zip(*gradients, strict=True):
        np.testing.assert_allclose(once, each, rtol=1e-4, atol=1e-6)
