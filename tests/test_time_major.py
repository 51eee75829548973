"""The batch of a queue, as the learner's graph sees it."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf
import tree

from impala_tf.agents.agent import Agent, make_agent, unroll_specs
from impala_tf.environments.observations import layout_of
from impala_tf.learner.update import time_major
from impala_tf.types import EnvironmentSpec, EnvOutput, Unroll
from tests.samples import image_spec, random_unrolls, vector_spec

B, T = 3, 4
SPEC = vector_spec()


def batch(agent: Agent, spec: EnvironmentSpec) -> Unroll:
    unrolls = random_unrolls(unroll_specs(agent, spec, T), B)
    return tree.map_structure(tf.constant, unrolls)


def test_time_comes_first_and_nothing_else_moves() -> None:
    """Mixing time and batch would train on steps of other environments, with no error."""
    agent = make_agent("MLPLSTMAgent", SPEC)
    before = batch(agent, SPEC)
    after = time_major(before, layout_of(SPEC))
    tree.assert_same_structure(after, before)
    for name in EnvOutput._fields:
        array = getattr(before.env_outputs, name).numpy()
        np.testing.assert_array_equal(getattr(after.env_outputs, name), np.swapaxes(array, 0, 1))
    for got, array in zip(after.agent_outputs, before.agent_outputs, strict=True):
        np.testing.assert_array_equal(got, np.swapaxes(array.numpy(), 0, 1))
    for got, array in zip(after.core_state, before.core_state, strict=True):
        np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(after.parameter_version, before.parameter_version)


def test_stacked_frames_are_rebuilt_step_by_step() -> None:
    """Written out: the newest frame last, and zeros for what a reset came after."""
    spec = image_spec((6, 7, 3), stacked_frames=3)
    before = batch(make_agent("ImpoolaAgent", spec), spec)
    frames, autoreset = before.env_outputs.observation.numpy(), before.env_outputs.autoreset.numpy()
    assert frames.shape == (B, T + 3, 6, 7)
    assert autoreset[:, 1:].any()
    expected = np.zeros((T + 1, B, 6, 7, 3), np.uint8)
    for t, b, k in itertools.product(range(T + 1), range(B), range(3)):
        # Channel k of step t is the frame of step t + k - 2, or before step 0 one of the first
        # stack, which was sent as it was.
        since = max(t + k - 2, 0) + 1
        if not autoreset[b, since : t + 1].any():
            expected[t, b, :, :, k] = frames[b, t + k]
    after = time_major(before, layout_of(spec)).env_outputs
    np.testing.assert_array_equal(after.observation, expected)
    np.testing.assert_array_equal(after.autoreset, autoreset.T)
    np.testing.assert_array_equal(after.reward, before.env_outputs.reward.numpy().T)
