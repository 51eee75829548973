"""Specs of levels, configs and random steps for the tests of agents and learners."""

from __future__ import annotations

from typing import Any

import numpy as np
import sonnet as snt
import tensorflow as tf

from impala_tf import config as configs
from impala_tf.config import Config
from impala_tf.types import EnvironmentSpec, EnvOutput
from tests.helpers.unrolls import random_array


def vector_spec(size: int = 3, num_actions: int = 4, frames_per_step: int = 1) -> EnvironmentSpec:
    return EnvironmentSpec(
        level_name="Vectors-v0",
        kind="vector",
        observation_shape=(size,),
        observation_dtype="float32",
        num_actions=num_actions,
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
        observation_shape=shape,
        observation_dtype="uint8",
        num_actions=num_actions,
        stacked_frames=stacked_frames,
        frames_per_step=4 if stacked_frames else 1,
        protocol="",
    )


def resolved_config(**flags: Any) -> Config:
    """Returns the config of a run on vectors: the preset "paper", changed by `flags`."""
    return configs.resolve(configs.replace(Config(), **{"preset": "paper", **flags}), "vector")


def steps(spec: EnvironmentSpec, leading: tuple[int, ...], seed: int = 0) -> EnvOutput:
    """Returns random steps as the agent sees them; episodes start here and there."""
    rng = np.random.default_rng(seed)
    flag = tf.TensorSpec((), tf.bool)
    specs = EnvOutput(
        reward=tf.TensorSpec((), tf.float32),
        terminated=flag,
        truncated=flag,
        autoreset=flag,
        episode_start=flag,
        observation=tf.TensorSpec(spec.observation_shape, spec.observation_dtype),
        last_action=tf.TensorSpec((), tf.int32),
    )
    arrays = [random_array(each, leading, rng) for each in specs]
    return EnvOutput(*map(tf.constant, arrays))


def randomize(module: snt.Module) -> None:
    """Gives every variable, including biases, random values."""
    rng = np.random.default_rng(0)
    for variable in module.trainable_variables:
        variable.assign(0.2 * rng.normal(size=variable.shape))
