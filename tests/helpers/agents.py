"""The networks that tests try, each with the smallest level that fits it."""

from __future__ import annotations

import dataclasses
from typing import Any

from impala_tf.agents.agent import Agent, agent_of
from impala_tf.config import AGENTS, AgentConfig
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
_PLAIN = AgentConfig(
    observation_normalization="none", initialization="default", heads="policy", layer_norm=False
)


def make_agent(
    agent_name: str, spec: EnvironmentSpec, torso_dtype: str = "float32", **flags: Any
) -> Agent:
    """Returns a named agent whose other flags are those of no preset."""
    config = dataclasses.replace(_PLAIN, agent_name=agent_name, **flags)
    return agent_of(config, spec, torso_dtype)
