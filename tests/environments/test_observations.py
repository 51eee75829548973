"""Frames are sent once and stacked again: the learner must see exactly what the actor saw."""

import numpy as np
import tensorflow as tf
import tree
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_tf.environments.observations import channels_last, layout_of, rebuild_stacks
from impala_tf.types import EnvOutput
from tests.helpers.samples import image_spec


def pack(steps: list[np.ndarray], stacked_frames: int) -> np.ndarray:
    """Packs T + 1 observations [N, K, H, W] as an actor does, into [N, T + K, H, W]."""
    num_envs, _, height, width = steps[0].shape
    layout = layout_of(image_spec((height, width, stacked_frames), stacked_frames))
    unroll = tree.map_structure(
        lambda spec: np.empty((num_envs, *spec.shape), spec.dtype),
        layout.unroll_specs(len(steps) - 1),
    )
    zeros = np.zeros(num_envs)
    for t, observation in enumerate(steps):
        step = EnvOutput(*(zeros for _ in EnvOutput._fields))._replace(observation=observation)
        layout.record(t, step, unroll)
    return unroll.observation


@settings(max_examples=75, deadline=None)
@given(
    sizes=st.sampled_from([(1, 4), (3, 4), (8, 4), (5, 1), (5, 2), (4, 3), (3, 6)]),
    resets=st.lists(st.lists(st.booleans(), min_size=16, max_size=16), min_size=3, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_packed_stacks_are_rebuilt_wherever_games_start(
    sizes: tuple[int, int], resets: list[list[bool]], seed: int
) -> None:
    """A learner that mixed frames of two games, or lost one, would train on what no actor saw."""
    unroll_length, stacked_frames = sizes
    # There are steps before the unroll, so that its first stack can have frames of older games.
    autoreset = np.array(resets)[:, : stacked_frames + 1 + unroll_length + 1]
    autoreset[:, 0] = True
    frames = np.random.default_rng(seed).integers(1, 256, (*autoreset.shape, 2, 3), np.uint8)
    stack = np.zeros((len(resets), stacked_frames, 2, 3), np.uint8)
    stacks = []
    for t in range(autoreset.shape[1]):
        stack = np.where(autoreset[:, t, None, None, None], 0, np.roll(stack, -1, axis=1))
        stack[:, -1] = frames[:, t]
        stacks.append(stack)
    seen = stacks[-unroll_length - 1 :]
    rebuilt = rebuild_stacks(pack(seen, stacked_frames), autoreset[:, -unroll_length - 1 :])
    assert rebuilt.dtype == tf.uint8
    for t, observation in enumerate(seen):
        np.testing.assert_array_equal(rebuilt[t], np.moveaxis(observation, 1, -1), f"step {t}")


def test_actor_and_learner_give_the_network_the_same_channels() -> None:
    """With another order of channels, the learner would correct for another policy."""
    observation = np.arange(2 * 4 * 3 * 3, dtype=np.uint8).reshape(2, 4, 3, 3)
    learned_from = rebuild_stacks(pack([observation], 4), np.zeros((2, 1), np.bool_))
    for acted_on in (channels_last(tf.constant(observation)), channels_last(observation)):
        np.testing.assert_array_equal(acted_on, learned_from[0])
