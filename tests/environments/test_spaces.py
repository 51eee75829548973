"""What agents see of Gymnasium's spaces, and how their actions become an environment's."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from gymnasium.vector import SyncVectorEnv

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
        (Box(0, 1, (7, 7, 20), np.uint8), ObservationSpec("image", (7, 7, 20))),  # MiniGrid one-hot
        (Box(0, 255, (4, 12, 9, 3), np.uint8), ObservationSpec("image", (12, 9, 12))),
        (Box(0, 1, (119, 8, 8), np.uint8), ObservationSpec("image", (8, 8, 119))),  # AlphaZero
        (Box(0, 255, (3, 210, 160), np.uint8), ObservationSpec("image", (210, 160, 3))),
        (Box(-1, 1, (3, 12, 12), np.float32), ObservationSpec("image", (12, 12, 3))),
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
        (Box(0, 4, (2, 2, 1), np.int64), [[[0], [4]], [[2], [1]]], [[0, 255], [128, 64]]),
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


@pytest.mark.parametrize("bound", [HUGE, 1e30, np.inf])
@pytest.mark.parametrize("low", [None, 0])
def test_images_with_huge_bounds_are_refused(bound: float, low: float | None) -> None:
    """Any two of their numbers would become the same shade."""
    with pytest.raises(
        ValueError, match="images of float32 without bounds; give their space the l"
    ):
        spaces.view(Box(-bound if low is None else low, bound, (10, 10, 3)), {})


@pytest.mark.parametrize(
    "space", [Dict({}), Dict({"a.b": Discrete(2), "a": Dict({"b": Discrete(3)})})], ids=str
)
def test_parts_that_are_lost_are_refused(space: Space) -> None:
    with pytest.raises(ValueError, match=r"hold nothing to see|would be called 'a\.b'"):
        spaces.view(space, {})


def test_axes_of_other_images_are_moved_not_reshaped() -> None:
    """A reshaped picture still has the right shape, and cannot be learned from."""
    frames = np.random.default_rng(2).integers(0, 255, (4, 12, 9, 3), np.uint8)
    _, convert = spaces.view(Box(0, 255, (4, 12, 9, 3), np.uint8), {})
    for k, c in np.ndindex(4, 3):
        np.testing.assert_array_equal(convert(frames)[..., 3 * k + c], frames[k, ..., c])
    _, convert = spaces.view(Box(0, 255, (4, 12, 9), np.uint8), {})
    np.testing.assert_array_equal(convert(frames[..., 0])[..., 2], frames[2, ..., 0])
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
        # A bound that float32 cannot express, and three ways to have none.
        (Box(-0.1, 0.1, (1,), np.float64), ActionSpec("continuous", (1,)), [[1], [-1], [0.5], [9]],
         [[0.1], [-0.1], [0.05], [0.1]]),
        (Box(-HUGE, HUGE, (1,)), ActionSpec("continuous", (1,)), [[7.5], [-3]], [[7.5], [-3]]),
        (Box(-2e308, 1.7e308, (1,), np.float64), ActionSpec("continuous", (1,)), [[7.5]], [[7.5]]),
        (Box(-np.inf, np.inf, (1,), np.float16), ActionSpec("continuous", (1,)), [[1e6], [0.5]],
         [[65504], [0.5]]),
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


@pytest.mark.parametrize(
    "name",
    [
        "Pendulum-v1",
        "FrozenLake-v1",
        "MiniGrid-Empty-5x5-v0",
        f"{WORLDS}:Everything-v0",
        f"{WORLDS}:FloatPictures-v0",
        f"{WORLDS}:ChannelsFirst-v0",
    ],  # fmt: skip
)
def test_levels_of_all_kinds_play(name: str) -> None:
    """Steps have the shapes and dtypes that the level's spec promises."""
    spec = suites.spec(level(name))
    environment = environment_of(level(name), num_envs=3)
    steps = [environment.reset()]
    for _ in range(30):
        steps.append(environment.step(np.zeros((3, *spec.actions.shape), spec.actions.dtype)))
    environment.close()
    for step in steps:
        assert step.last_action.dtype == spec.actions.dtype
        for part, seen in parts_of(spec.observation).items():
            value = parts_of(step.observation)[part]
            assert (value.shape, value.dtype) == ((3, *seen.shape), seen.dtype)


def far(offset: float, part: str = "") -> gymnasium.Env:
    """CartPole in the coordinates of a map, with other digits than float32 has."""
    box = Box(-np.inf, np.inf, (4,), np.float64)
    space, env = (Dict({part: box}) if part else box), gymnasium.make("CartPole-v1")

    def see(observation: Any) -> Any:
        there = observation.astype(np.float64) + offset
        return {part: there} if part else there

    return gymnasium.wrappers.TransformObservation(env, see, space)


@pytest.mark.parametrize("processes", [True, False])
@pytest.mark.parametrize("kwargs", ['{"offset": -5e6}', '{"offset": 1.7e9, "part": "x"}'])
def test_numbers_far_from_zero_keep_their_digits(kwargs: str, processes: bool) -> None:
    """As float32, all numbers of a game would be the same, and nothing could be learned."""
    env = level(f"{__name__}:far", level_kwargs=kwargs, environment_processes=processes)
    assert re.search(r"vector 4 minus \[(-4999168|1699741696)\.0, ", suites.spec(env).protocol)
    environment = environment_of(env, num_envs=2)
    outputs = [environment.reset(), *(environment.step(np.ones(2, np.int32)) for _ in range(7))]
    environment.close()
    seen = np.array([parts_of(output.observation).popitem()[1][0] for output in outputs])
    assert seen.dtype == np.float32
    assert [len(set(column)) for column in seen[:, [1, 3]].T] == [8, 8]  # velocities


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


@pytest.mark.parametrize("name", [f"{__name__}:Far", "Far-v0"])
def test_whole_numbers_and_vector_environments_keep_their_digits(name: str) -> None:
    environment = environment_of(level(name), num_envs=2)
    outputs = [environment.reset(), *(environment.step(np.ones(2, np.int32)) for _ in range(7))]
    environment.close()
    for part in "nx":
        seen = np.array([output.observation[part][1] for output in outputs])
        assert seen.dtype == np.float32 and {len(set(column)) for column in seen.T} == {8}
