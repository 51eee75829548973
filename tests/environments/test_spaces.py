"""What agents see of Gymnasium's spaces, and how their actions become an environment's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from gymnasium.vector import SyncVectorEnv

from impala_tf.config import ConfigError
from impala_tf.environments import spaces, suites
from impala_tf.environments.observations import parts_of
from impala_tf.types import ActionSpec, ObservationSpec
from tests.helpers.games import WORLDS, environment_of, level

BITS: Any = np.bool_  # MinAtar has such a Box; its annotation knows only numbers
HUGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (Box(0, 255, (8, 9), np.uint8), ObservationSpec("image", (8, 9, 1))),
        (Box(0, 255, (4, 12, 9), np.uint8), ObservationSpec("image", (12, 9, 4))),
        (Box(0, 255, (4, 12, 9, 3), np.uint8), ObservationSpec("image", (12, 9, 12))),
        (Box(0, 1, (119, 8, 8), np.uint8), ObservationSpec("image", (8, 8, 119))),  # AlphaZero
        (Box(0, 255, (128,), np.uint8), ObservationSpec("vector", (128,))),  # Atari's memory
        (Discrete(16), ObservationSpec("vector", (16,))),
        (MultiDiscrete([2, 3]), ObservationSpec("vector", (5,))),
        (Text(20), ObservationSpec("text", (spaces.MAX_WORDS,))),
        (
            Dict({"eye": Box(0, 255, (7, 7, 3), np.uint8), "body": Dict({"speed": Discrete(2)})}),
            {
                "eye": ObservationSpec("image", (7, 7, 3)),
                "body.speed": ObservationSpec("vector", (2,)),
            },
        ),
        (
            Tuple((Discrete(3), Box(-1, 1, (2,)))),
            {"0": ObservationSpec("vector", (3,)), "1": ObservationSpec("vector", (2,))},
        ),
    ],
    ids=str,
)
def test_observations_have_what_their_spec_says(space: Space, seen: object) -> None:
    """A part that is lost or swapped could not be learned from."""
    space.seed(3)
    sample = space.sample()
    found, convert = spaces.view(space, {})
    assert found == seen
    assert spaces.kind_of(found) == ("image" if "image" in str(seen) else "vector")
    arrays = parts_of(convert(sample))
    for name, part in parts_of(seen).items():
        assert arrays[name].shape == part.shape
        assert part.kind != "image" or arrays[name].dtype == np.uint8


@pytest.mark.parametrize(
    ("space", "image", "expected"),
    [
        (Box(0, 1, (2, 2, 1), BITS), [[[1], [0]], [[0], [1]]], [[255, 0], [0, 255]]),
        (Box(-1, 3, (2, 2, 1), np.float64), [[[-1], [3]], [[1], [0]]], [[0, 255], [128, 64]]),
        # Each place has bounds of its own.
        (Box(np.zeros((1, 2, 1)), np.array([[[1], [1000]]]), dtype=np.float64), [[[1], [1]]],
         [[255, 0]]),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_of_other_images_become_shades(space: Space, image: list, expected: list) -> None:
    _, convert = spaces.view(space, {})
    found = convert(np.array(image, space.dtype))
    np.testing.assert_array_equal(found[..., 0], expected)


def test_axes_of_other_images_are_moved_not_reshaped() -> None:
    """A reshaped picture still has the right shape, and cannot be learned from."""
    frames = np.random.default_rng(2).integers(0, 255, (4, 12, 9, 3), np.uint8)
    _, convert = spaces.view(Box(0, 255, (4, 12, 9, 3), np.uint8), {})
    for k, c in np.ndindex(4, 3):
        np.testing.assert_array_equal(convert(frames)[..., 3 * k + c], frames[k, ..., c])
    planes = frames.reshape(16, 9, 9)
    _, convert = spaces.view(Box(0, 255, (16, 9, 9), np.uint8), {})
    np.testing.assert_array_equal(convert(planes)[..., 5], planes[5])


def test_words_are_told_apart_and_stay_the_same_in_every_process() -> None:
    """Python's own hash() of a text differs from process to process."""
    found = spaces.hash_words("go to the red  ball, Go!")
    assert found[:7].tolist() == [found[0], found[1], found[2], found[3], found[4], found[0], 0]
    assert len(set(found[:5].tolist())) == 5
    assert found[0] == 1 + 3060306774 % 1000  # CRC-32 of "go"
    assert not found[6:].any()
    long = spaces.hash_words(" ".join(map(str, range(100))))
    assert long.shape == (spaces.MAX_WORDS,) and long.all()


@pytest.mark.parametrize(
    ("space", "spec", "action", "expected"),
    [
        (Discrete(3, start=5), ActionSpec("discrete", (3,)), [1, 2], [6, 7]),
        (MultiDiscrete([2, 4]), ActionSpec("multi_discrete", (2, 4)), [[1, 3]], [[1, 3]]),
        (MultiBinary((2, 2)), ActionSpec("multi_discrete", (2, 2, 2, 2)), [[1, 0, 0, 1]],
         [[[1, 0], [0, 1]]]),
        (Box(-2, 4, (2,)), ActionSpec("continuous", (2,)), [[-1, 1], [0, 9]], [[-2, 4], [1, 4]]),
        (Box(-np.inf, np.inf, (1,)), ActionSpec("continuous", (1,)), [[7.5]], [[7.5]]),
        # A bound that float32 cannot express, and two more ways to have none.
        (Box(-0.1, 0.1, (1,), np.float64), ActionSpec("continuous", (1,)), [[1], [-1], [0.5], [9]],
         [[0.1], [-0.1], [0.05], [0.1]]),
        (Box(-HUGE, HUGE, (1,)), ActionSpec("continuous", (1,)), [[7.5], [-3]], [[7.5], [-3]]),
        (Box(0, np.inf, (1,)), ActionSpec("continuous", (1,)), [[7.5], [-3]], [[7.5], [0]]),
    ],
    ids=str,
)  # fmt: skip
def test_actions_reach_the_environment_in_its_own_units(
    space: Space, spec: ActionSpec, action: list, expected: list
) -> None:
    assert spaces.action_spec(space) == spec
    given = np.array(action, spec.dtype)
    with np.errstate(all="raise"):
        found = spaces.action_converter(space)(given)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == space.dtype or not isinstance(space, Box)
    assert all(space.contains(each) for each in found.astype(space.dtype))


class Far(gymnasium.Env):
    """Counts, far from zero in all but one of its numbers."""

    observation_space = Dict({"n": Box(-(2**62), 2**62, (3,), np.int64),
                              "x": Box(-np.inf, np.inf, (1, 2), np.float64)})  # fmt: skip
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None) -> tuple[Any, dict[str, Any]]:
        self._t = 0
        return self._seen(), {}

    def step(self, action) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        return self._seen(), 1.0, False, False, {}

    def _seen(self) -> dict[str, np.ndarray]:
        t = self._t
        return {"n": np.array([2**61 + t, t, -(10**12) - t]), "x": np.array([[1e7 + t / 2, t / 9]])}


gymnasium.register(
    "Far-v0", vector_entry_point=lambda **given: SyncVectorEnv([Far] * given["num_envs"])
)


@pytest.mark.parametrize(
    ("name", "processes"),
    [(f"{__name__}:Far", False), (f"{__name__}:Far", True), ("Far-v0", False)],
)
def test_numbers_far_from_zero_keep_their_digits(name: str, processes: bool) -> None:
    """As float32, all numbers of a game would be the same, and nothing could be learned."""
    environment = environment_of(level(name, environment_processes=processes), num_envs=2)
    outputs = [environment.reset(), *(environment.step(np.ones(2, np.int32)) for _ in range(7))]
    environment.close()
    for part in "nx":
        seen = np.array([output.observation[part][1] for output in outputs])
        assert seen.dtype == np.float32 and {len(set(column)) for column in seen.T} == {8}


@pytest.mark.parametrize("name", ["Locked-v0", "LockedInfo-v0"])
def test_a_mask_is_a_part_of_the_observation(name: str) -> None:
    """Wherever the level has it."""
    env = level(f"{WORLDS}:{name}")
    assert suites.spec(env).masks_actions
    environment = environment_of(env, num_envs=3)
    output = environment.reset()
    for _ in range(25):  # with episode ends
        mask = output.observation["action_mask"]
        assert mask.dtype == np.float32 and (mask.sum(axis=-1) == 2).all()
        np.testing.assert_array_equal(mask, output.observation["observation"])
        output = environment.step(mask.argmax(axis=-1).astype(np.int32))
    assert sum(episode.episode_return for episode in environment.pop_episodes()) == 60
    environment.close()


class Choices(gymnasium.Env[Any, Any]):
    """Three options to choose from, and two, with a mask of `size` numbers."""

    action_space = MultiDiscrete([3, 2])

    def __init__(self, size: int) -> None:
        mask = Box(0, 1, (size,), np.int8)
        self.observation_space = Dict({"action_mask": mask, "x": Box(-1, 1, (2,))})


def test_a_mask_has_a_number_for_each_option_of_each_choice() -> None:
    right, wrong = (
        level(f"{__name__}:Choices", level_kwargs=f'{{"size": {size}}}') for size in (5, 4)
    )
    assert suites.spec(right).masks_actions
    with pytest.raises(ConfigError, match="action_mask that is vector 4"):
        suites.spec(wrong)
