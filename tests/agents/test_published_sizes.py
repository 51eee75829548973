"""Numbers of parameters, derived by hand from the papers and from Impoola's own code."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec

# Mnih et al. (2015): 8x8 stride 4, 4x4 stride 2 and 3x3 stride 1 with 32, 64 and 64 channels leave
# 7x7 positions of 84x84; then 512 units. Every layer has biases.
NATURE = (
    (8 * 8 * 4 * 32 + 32)
    + (4 * 4 * 32 * 64 + 64)
    + (3 * 3 * 64 * 64 + 64)
    + (7 * 7 * 64 * 512 + 512)
)  # 1,684,128


def sections(*channels: int) -> int:
    """Returns the parameters of the residual network's convolutions on RGB images.

    Each section has a 3x3 convolution from the channels before it to its own, and two blocks of two
    3x3 convolutions that keep its channels; all with biases (Espeholt et al., 2018, figure 3, and
    ImpalaCNN in impoola/train/nn.py of github.com/raphajaner/impoola).
    """
    before, total = 3, 0
    for own in channels:
        total += (9 * before * own + own) + 2 * 2 * (9 * own * own + own)
        before = own
    return total


# Three max-poolings with stride 2 leave 8x8 positions of 64x64. The linear layer always has 256
# units: width_scale of ImpalaCNN multiplies the channels only.
NARROW, WIDE = sections(16, 32, 32), sections(32, 64, 64)  # 97,600 and 388,736
HEADS = 256 * 15 + 15 + 256 + 1  # Procgen's 15 actions, and the baseline


@pytest.mark.parametrize(
    ("agent_name", "width_scale", "parameters"),
    [
        ("ImpoolaAgent", 1, NARROW + 32 * 256 + 256 + HEADS),
        ("ImpoolaAgent", 2, WIDE + 64 * 256 + 256 + HEADS),
        ("ResNetAgent", 1, NARROW + 8 * 8 * 32 * 256 + 256 + HEADS),
        ("ResNetAgent", 2, WIDE + 8 * 8 * 64 * 256 + 256 + HEADS),
    ],
)
def test_on_procgen_the_networks_have_the_size_that_impoolas_code_gives(
    agent_name: str, width_scale: int, parameters: int
) -> None:
    """Otherwise the comparison of Trumpp et al. (2025) could not be repeated."""
    spec = image_spec((64, 64, 3), num_actions=15)
    assert size(agent_name, spec, width_scale=width_scale) == parameters
    # What that code's PPOAgent counts; see docs/levels_and_agents.md.
    published = {
        ("ImpoolaAgent", 1): 110_160,
        ("ImpoolaAgent", 2): 409_488,
        ("ResNetAgent", 1): 626_256,
        ("ResNetAgent", 2): 1_441_680,
    }
    assert parameters == published[agent_name, width_scale]


def test_on_atari_the_nature_network_has_its_published_size() -> None:
    """About 1.7 million, with the 6 actions of Pong."""
    pong = image_spec((84, 84, 4), stacked_frames=4, num_actions=6)
    # The published network has an output for each action. The baseline is one more here.
    outputs = 6 + 1
    assert size("NatureAgent", pong) == NATURE + (512 + 1) * outputs == 1_687_719
    # This one also sees the one-hot last action and the last reward.
    assert size("SimpleConvNetAgent", pong) == NATURE + (512 + 6 + 1 + 1) * outputs


def size(agent_name: str, spec: Any, **flags: Any) -> int:
    """Returns the number of an agent's parameters."""
    agent = make_agent(agent_name, spec, **flags)
    return sum(int(tf.size(variable)) for variable in agent.trainable_variables)
