"""Specs of levels, configs and random steps for the tests of agents and learners."""

from __future__ import annotations

from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.config import Config, Given
from impala_tf.environments.observations import layout_of
from impala_tf.types import ActionSpec, EnvironmentSpec, EnvOutput, ObservationSpec
from tests.helpers.unrolls import random_array


def vector_spec(size: int = 3, num_actions: int = 4, frames_per_step: int = 1) -> EnvironmentSpec:
    return EnvironmentSpec(
        level_name="Vectors-v0",
        kind="vector",
        observation=ObservationSpec("vector", (size,)),
        actions=ActionSpec("discrete", (num_actions,)),
        stacked_frames=0,
        frames_per_step=frames_per_step,
        protocol="",
    )


def image_spec(
    shape: tuple[int, int, int], stacked_frames: int = 0, num_actions: int = 4
) -> EnvironmentSpec:
    """Returns the spec of a level with images [H, W, C]; of Atari if frames are stacked."""
    return EnvironmentSpec(
        level_name="Images-v0",
        kind="atari" if stacked_frames else "image",
        observation=ObservationSpec("image", shape),
        actions=ActionSpec("discrete", (num_actions,)),
        stacked_frames=stacked_frames,
        frames_per_step=4 if stacked_frames else 1,
        protocol="",
    )


def resolved_config(**flags: Any) -> Config:
    """Returns the config of a run on vectors: the preset "paper", changed by `flags`."""
    return configs.resolve(Given().replace(**{"preset": "paper", **flags}), "vector")


def steps(spec: EnvironmentSpec, leading: tuple[int, ...], seed: int = 0) -> EnvOutput:
    """Returns random steps as the agent sees them; episodes start here and there."""
    rng = np.random.default_rng(seed)
    return tf.nest.map_structure(
        lambda each: tf.constant(random_array(each, leading, rng)),
        layout_of(spec).network_specs(),
    )


def randomize(module: snt.Module) -> None:
    """Gives every variable, including biases, random values."""
    rng = np.random.default_rng(0)
    for variable in module.trainable_variables:
        variable.assign(0.2 * rng.normal(size=variable.shape))
