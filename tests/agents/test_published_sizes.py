"""Numbers of parameters, derived by hand from the papers and from Impoola's own code."""

from __future__ import annotations

import pytest
import tensorflow as tf

from impala_tf.types import EnvironmentSpec
from tests.helpers.agents import make_agent
from tests.helpers.samples import image_spec

PROCGEN = image_spec((64, 64, 3), num_actions=15)
PONG = image_spec((84, 84, 4), stacked_frames=4, num_actions=6)
# Mnih et al. (2015): 8x8 stride 4, 4x4 stride 2 and 3x3 stride 1 with 32, 64 and 64 channels leave
# 7x7 positions of 84x84; then 512 units, and an output for each action. The baseline is one more.
NATURE = 8_224 + 32_832 + 36_928 + (7 * 7 * 64 * 512 + 512)


@pytest.mark.parametrize(
    ("agent_name", "spec", "width_scale", "parameters"),
    [
        # What PPOAgent of Impoola's own code counts; see docs/levels_and_agents.md.
        ("ImpoolaAgent", PROCGEN, 1, 110_160),
        ("ImpoolaAgent", PROCGEN, 2, 409_488),
        ("ResNetAgent", PROCGEN, 1, 626_256),
        ("ResNetAgent", PROCGEN, 2, 1_441_680),
        ("NatureAgent", PONG, 1, NATURE + 513 * 7),
        # This one also sees the one-hot last action and the last reward.
        ("SimpleConvNetAgent", PONG, 1, NATURE + (512 + 6 + 1 + 1) * 7),
    ],
)
def test_an_agent_has_the_published_size(
    agent_name: str, spec: EnvironmentSpec, width_scale: int, parameters: int
) -> None:
    """Otherwise comparisons such as that of Trumpp et al. (2025) could not be repeated."""
    agent = make_agent(agent_name, spec, width_scale=width_scale)
    assert sum(int(tf.size(variable)) for variable in agent.trainable_variables) == parameters
