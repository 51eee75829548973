"""Levels whose reset or step returns something else than it must."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Text, Tuple

from impala_tf.config import ConfigError
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.simplify import find_problem
from tests.helpers.games import BROKEN_WORLDS, guarded_level, level

MISFIT, LIMITED = f"{BROKEN_WORLDS}:FaultyCartPole", f"{BROKEN_WORLDS}:limited"
STEP = "step must return 5 values (observation, reward, terminated, truncated, info)"


def play(name: str, processes: bool, steps: int, **settings: Any) -> BatchedEnvironment:
    """Plays in two environments, as an actor does."""
    kwargs = json.dumps(settings)
    environment = guarded_level(
        level(name, level_kwargs=kwargs, environment_processes=processes), 2
    )
    try:
        environment.reset()
        for _ in range(steps):
            environment.step(np.ones(2, np.int32))
    finally:
        environment.close()
    return environment


@pytest.mark.parametrize("processes", [True, False])
@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        (MISFIT, {"fault": "shape"}, ["step", "shape (3,)", "observation_space", "(4,)"]),
        (MISFIT, {"fault": "none", "method": "reset"}, ["reset", "observation"]),
        (MISFIT, {"fault": "values"}, [STEP, "returned 4"]),
        (MISFIT, {"fault": "info"}, ["step", "a dictionary as info", "str"]),
        (LIMITED, {"fault": "values"}, [STEP]),  # a wrapper is the first to see it
        (LIMITED, {"fault": "nothing"}, [STEP]),
        (f"{BROKEN_WORLDS}:SeedlessCartPole", {}, ["reset", "'seed'"]),
    ],
)
def test_a_level_that_never_fits_is_refused_in_one_line(
    name: str, processes: bool, settings: dict[str, str], words: list[str]
) -> None:
    """Making it again would not help, and what vector environments say names nothing."""
    with pytest.raises(ConfigError) as caught:
        play(name, processes, 1, **settings)
    (problem,) = caught.value.problems
    assert problem.startswith(f"--level_name={name}: ")
    assert all(word in problem for word in words), problem


@pytest.mark.parametrize(
    ("space", "fitting", "misfits"),
    [
        (Discrete(3), [2, True, np.int64(0), np.ones(1, int)], [-1, 3, 1.0, "a", [1, 2]]),
        (MultiDiscrete([2, 3]), [(1, 2), np.zeros(2, np.uint8)], [(2, 0), (0, -1), (0,)]),
        (Box(0, 255, (2, 2), np.uint8), [np.zeros((2, 2), np.uint8)], [np.zeros((2, 2), int)]),
        (Box(0, 1, (2,), np.float32), [[0, 1], np.zeros(2), np.array([9, 9])], [["a", "b"]]),
        (Box(0, 9, (4, 4, 3), np.int32), [np.zeros((4, 4, 3))], [[1, [2, 3]]]),  # scaled to uint8
        (
            Dict({"far": Dict({"eye": Box(0, 1, (2,))}), "near": Box(0, 1, (3,))}),
            [{"far": {"eye": np.zeros(2)}, "near": np.zeros(3)}],
            [np.zeros(3), None, {"near": np.zeros(3)}, {"far": {"eye": np.zeros(3)}}],
        ),
        (
            Tuple([Box(0, 1, (2,)), Discrete(3)]),
            [(np.zeros(2), 1)],
            [(np.zeros(3), 1), (np.zeros(2),), 3],
        ),
        (Text(9), ["a"], [None]),
    ],
)
def test_observations_are_in_their_space(
    space: Space[Any], fitting: list[Any], misfits: list[Any]
) -> None:
    """NumPy's errors name no level, and category -1 was taken for the last one."""
    for observation in fitting:
        assert not find_problem("reset", (observation, {}), space)
    for observation in misfits:
        assert "an observation" in find_problem("reset", (observation, {}), space)


def test_a_reward_must_be_a_number() -> None:
    assert not find_problem("step", (1, np.ones(1), False, False, {}), Discrete(3))
    for reward, kind in ((None, "None"), ("1", "str"), (np.array(["1.5"]), "ndarray")):
        problem = find_problem("step", (1, reward, False, False, {}), Discrete(3))
        assert "a number as reward" in problem and kind in problem
