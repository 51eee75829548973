"""Actors without TensorFlow: the converted network answers as the agent does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.actor.network import ActingModel, LiteRtPolicy
from impala_tf.agents.agent import Agent
from impala_tf.agents.sampling import sampler_of
from impala_tf.environments.observations import layout_of
from impala_tf.learner.conversion import NetworkService, convert
from impala_tf.transport import NoNetwork
from impala_tf.types import ActionSpec, EnvironmentSpec, EnvOutput, Nest, ObservationSpec
from tests.helpers.agents import NETWORKS, make_agent, spec_for
from tests.helpers.samples import image_spec, randomize, vector_spec
from tests.helpers.unrolls import random_array

N = 3
PARTS = vector_spec()._replace(
    kind="image",
    observation={
        "picture": ObservationSpec("image", (20, 24, 3)),
        "text": ObservationSpec("text", (5,)),
        "vector": ObservationSpec("vector", (2,)),
    },
)
CONTINUOUS = vector_spec()._replace(actions=ActionSpec("continuous", (2,)))
CHOICES = vector_spec()._replace(actions=ActionSpec("multi_discrete", (3, 2)))
ATARI = image_spec((84, 84, 4), stacked_frames=4)
LEVELS = image_spec((20, 24, 3))._replace(tasks=("a", "b"))
OTHERS: list[tuple[EnvironmentSpec, dict[str, Any]]] = [
    (PARTS, {"agent_name": "ImpoolaLSTMAgent"}),
    (CONTINUOUS, {"agent_name": "MLPLSTMAgent"}),
    (CHOICES, {"agent_name": "MLPLSTMAgent"}),
    (vector_spec(), {"agent_name": "MLPAgent", "observation_normalization": "elementwise"}),
    (ATARI, {"agent_name": "NatureAgent", "observation_normalization": "elementwise"}),
    (LEVELS, {"agent_name": "ResNetAgent"}),
    (ATARI, {"agent_name": "NatureAgent", "layer_norm": True}),
]
CASES = [*((spec_for(network["agent_name"]), network) for network in NETWORKS), *OTHERS]


def assert_near(got: np.ndarray, wanted: tf.Tensor) -> None:
    """Asserts equality to the precision of sums of hundreds of float32 products."""
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=5e-4 * scale)


@pytest.mark.parametrize(("spec", "network"), CASES, ids=lambda each: str(each)[-70:])
def test_the_converted_network_answers_as_the_agent(
    spec: EnvironmentSpec, network: dict[str, Any]
) -> None:
    """With parameters that came after the conversion: V-trace needs what really acted."""
    agent, layout, rng = make_agent(spec=spec, **network), layout_of(spec), np.random.default_rng(0)
    model = ActingModel.from_bytes(convert(agent, spec, N).to_bytes())
    converted = LiteRtPolicy(model, layout, sampler_of(spec.actions, rng))
    randomize(agent)
    for variable in agent.variables:  # of a normalizer
        if not variable.trainable:
            variable.assign(tf.random.stateless_uniform(variable.shape, (1, 2), 0.5, 1.5))
    converted.set_parameters([variable.numpy() for variable in agent.variables])
    expected_state = agent.initial_state(N)
    state = tf.nest.map_structure(lambda zeros: zeros.numpy(), expected_state)
    for _ in range(3):
        step = tf.nest.map_structure(lambda each: random_array(each, (), rng), layout.step_specs(N))
        seen = tf.nest.map_structure(tf.constant, layout.to_network(step))
        expected, expected_state = agent.step(seen, expected_state)
        answer, state = converted.answer(step, state)
        assert_near(answer.policy_logits, expected.policy_logits)
        assert answer.action.shape == (N, *spec.actions.shape)
        assert answer.action.dtype == spec.actions.dtype
        tf.nest.map_structure(assert_near, state, expected_state)


def test_actors_need_no_parameters_of_a_separate_baseline() -> None:
    """They would be half of what fifty actors fetch again and again."""
    spec = vector_spec()
    agent = make_agent("SeparateMLPAgent", spec)
    before = [variable.numpy() for variable in agent.variables]
    sent = convert(agent, spec, N).to_bytes()
    assert len(sent) < 12_000, "thousands of actors ask for it at once"
    for kept, now in zip(before, agent.variables, strict=True):
        np.testing.assert_array_equal(kept, now)
    sizes = [variable.shape.num_elements() for variable in agent.variables]
    assert sum(sizes[index] for index in ActingModel.from_bytes(sent).used) < 0.6 * sum(sizes)


class ChangedAgent(Agent):
    """Answers another way in every graph, and when it is called."""

    num_steps = 0

    def step(self, env_output: EnvOutput, core_state: Nest) -> tuple[Any, Nest]:
        outputs, core_state = super().step(env_output, core_state)
        self.num_steps += 1
        logits = outputs.policy_logits + self.num_steps
        return outputs._replace(policy_logits=logits), core_state


def test_a_model_that_answers_differently_is_refused() -> None:
    """Weights in wrong places would let actors follow a policy that nobody trains."""
    agent = make_agent("MLPAgent", vector_spec())
    agent.__class__ = ChangedAgent
    with pytest.raises(NoNetwork, match="answers differently"):
        NetworkService(agent, vector_spec()).network(N).result(60)
