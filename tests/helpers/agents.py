"""The networks that tests try, each with the smallest level that fits it."""

from __future__ import annotations

from typing import Any

from impala_tf.config import AGENTS
from impala_tf.types import EnvironmentSpec
from tests.helpers.samples import image_spec, vector_spec

VECTORS = vector_spec()
SMALL_IMAGES = image_spec((20, 24, 3))
ATARI = image_spec((84, 84, 4), stacked_frames=4)


def spec_for(agent_name: str) -> EnvironmentSpec:
    """Returns a level that fits the agent, as small as its torso allows."""
    torso = AGENTS[agent_name].torso.name
    return {"mlp": VECTORS, "impala": SMALL_IMAGES, "impoola": SMALL_IMAGES}.get(torso, ATARI)


# Every named agent, and other cores and widths than the agents' own.
NETWORKS: list[dict[str, Any]] = [
    *({"agent_name": name} for name in AGENTS),
    {"agent_name": "ResNetAgent", "core": "lstm", "width_scale": 2},
    {"agent_name": "ImpoolaLSTMAgent", "core": "feedforward", "width_scale": 3},
    {"agent_name": "NatureAgent", "core": "lstm"},
    {"agent_name": "ShallowConvNetAgent", "width_scale": 2},
]
