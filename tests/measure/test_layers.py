"""What is said about a network's layers, size and memory, against counts by hand."""

from __future__ import annotations

from typing import Any

import pytest
import sonnet as snt
import tensorflow as tf

from impala_tf.config import AGENTS
from impala_tf.measure.layers import Layer, activation_bytes, layers_of
from impala_tf.types import EnvironmentSpec
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec, vector_spec

ATARI = image_spec((84, 84, 4), stacked_frames=4, num_actions=6)
SMALL = image_spec((20, 24, 3))


def described(agent_name: str, spec: EnvironmentSpec, **flags: Any) -> list[Layer]:
    return layers_of(make_agent(agent_name, spec, **flags), spec)


@pytest.mark.parametrize(
    "flags",
    [{}, {"width_scale": 2, "observation_normalization": "elementwise"}, {"layer_norm": True}],
)
@pytest.mark.parametrize("agent_name", list(AGENTS))
def test_the_totals_are_those_of_the_agent(agent_name: str, flags: dict[str, Any]) -> None:
    """A layer that is left out of the table would make a network look smaller than it is."""
    spec = vector_spec() if AGENTS[agent_name].torso.takes == "vectors" else ATARI
    agent = make_agent(agent_name, spec, **flags)
    expected = sum(int(tf.size(variable)) for variable in agent.trainable_variables)
    layers = layers_of(agent, spec)
    assert sum(layer.parameters for layer in layers) == expected
    # Each weight is used at every position of the layer's output, each bias nowhere.
    for layer in layers:
        positions = 1
        for size in layer.output_shape[:-1]:
            positions *= size
        biases = layer.output_shape[-1] * (4 if layer.kind == "LSTM" else 1)
        if layer.parameters and layer.kind != "layer norm":
            assert layer.multiply_adds == positions * (layer.parameters - biases)


def test_the_layers_of_the_nature_network_are_the_published_ones() -> None:
    """Mnih et al. (2015): no padding, so that 84 pixels become 20, 9 and 7 positions."""
    *torso, policy, baseline = described("NatureAgent", ATARI)
    assert torso == [
        ("nature/conv2_d", "convolution 8x8, stride 4", (20, 20, 32), 8_224, 400 * 256 * 32),
        ("nature/conv2_d", "convolution 4x4, stride 2", (9, 9, 64), 32_832, 81 * 512 * 64),
        ("nature/conv2_d", "convolution 3x3", (7, 7, 64), 36_928, 49 * 576 * 64),
        ("nature/linear", "linear", (512,), 1_606_144, 3_136 * 512),
    ]
    assert policy == ("heads/policy_logits", "linear", (6,), 513 * 6, 512 * 6)
    assert baseline == ("heads/baseline", "linear", (1,), 513, 512)


def test_poolings_and_the_lstm_are_layers_too() -> None:
    """Impoola differs from the paper's network in nothing but a pooling."""
    layers = described("ImpoolaLSTMAgent", SMALL)
    pooled = [
        (layer.kind, layer.output_shape)
        for layer in layers
        if "pooling" in layer.kind or layer.kind == "LSTM"
    ]
    assert pooled == [
        ("max pooling 3x3, stride 2", (10, 12, 16)),
        ("max pooling 3x3, stride 2", (5, 6, 32)),
        ("max pooling 3x3, stride 2", (3, 3, 32)),
        ("average pooling", (32,)),
        ("LSTM", (256,)),
    ]
    (lstm,) = [layer for layer in layers if layer.kind == "LSTM"]
    inputs = 256 + 4 + 1  # features, one-hot last action, last reward
    assert lstm.multiply_adds == 4 * 256 * (inputs + 256)
    with_flattening = described("ResNetAgent", SMALL)
    assert not any("average" in layer.kind for layer in with_flattening)


# What the backward pass needs of a step: the scaled image and the outputs of every ReLU.
IMAGE, SHALLOW_RELUS = 84 * 84 * 4, 20 * 20 * 16 + 9 * 9 * 32
STEPS = (2 + 1) * 5  # T = 2, B = 5


@pytest.mark.parametrize(
    ("agent_name", "spec", "dtype", "expected"),
    [
        ("ShallowConvNetAgent", ATARI, "float32", 4 * (IMAGE + SHALLOW_RELUS + 256)),
        # The heads compute in float32 on a copy of the features.
        ("ShallowConvNetAgent", ATARI, "bfloat16", 2 * (IMAGE + SHALLOW_RELUS + 256) + 4 * 256),
        # The observation itself is part of the batch. What is kept are the outputs of tanh.
        ("MLPAgent", vector_spec(), "float32", 4 * (64 + 64)),
    ],
)
def test_activations_are_what_the_backward_pass_reads(
    agent_name: str, spec: EnvironmentSpec, dtype: str, expected: int
) -> None:
    """Whether a batch fits into memory is read from this number."""
    agent = make_agent(agent_name, spec, dtype)
    assert activation_bytes(agent, spec, 2, 5) == STEPS * expected


def test_parameters_that_no_step_uses_are_not_passed_over() -> None:
    """The totals would silently be too small. Training works without them."""
    agent = make_agent("MLPAgent", vector_spec())
    agent.forgotten = snt.Linear(3)
    agent.forgotten(tf.zeros([1, 2]))
    *used, last = layers_of(agent, vector_spec())
    assert (last.parameters, last.multiply_adds, last.output_shape) == (2 * 3 + 3, 0, ())
    assert all(layer.output_shape for layer in used)
