"""Levels whose reset or step returns something else than it must."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space

from impala_tf.config import ConfigError
from impala_tf.environments.simplify import find_problem
from tests.helpers.games import BROKEN_WORLDS, guarded_level, level

MISFIT, LIMITED = f"{BROKEN_WORLDS}:FaultyCartPole", f"{BROKEN_WORLDS}:limited"
STEP = "step must return 5 values (observation, reward, terminated, truncated, info)"


@pytest.mark.parametrize(
    ("name", "settings", "processes", "words"),
    [
        (MISFIT, {"fault": "shape"}, False, ["step", "shape (3,)", "observation_space", "(4,)"]),
        (MISFIT, {"fault": "values"}, True, [STEP, "returned 4"]),
        (LIMITED, {"fault": "values"}, False, [STEP]),  # a wrapper is the first to see it
        (f"{BROKEN_WORLDS}:SeedlessCartPole", {}, False, ["reset", "'seed'"]),
    ],
)
def test_a_level_that_never_fits_is_refused_in_one_line(
    name: str, settings: dict[str, str], processes: bool, words: list[str]
) -> None:
    """Making it again would not help, and what vector environments say names nothing."""
    env = level(name, level_kwargs=json.dumps(settings), environment_processes=processes)
    with closing(guarded_level(env, 2)) as environment, pytest.raises(ConfigError) as caught:
        environment.reset()
        environment.step(np.ones(2, np.int32))
    (problem,) = caught.value.problems
    assert problem.startswith(f"--level_name={name}: ")
    assert all(word in problem for word in words), problem


@pytest.mark.parametrize(
    ("space", "fits", "misfits"),
    [
        (Discrete(3), np.ones(1, int), [-1, 3, 1.0, "a", [1, 2]]),
        (Box(0, 255, (2, 2), np.uint8), np.zeros((2, 2), np.uint8), [np.zeros((2, 2), int)]),
        (Box(0, 9, (4, 4, 3), np.int32), np.zeros((4, 4, 3)), [[1, [2, 3]]]),  # scaled to uint8
        (Dict({"near": Box(0, 1, (3,))}), {"near": np.zeros(3)}, [np.zeros(3), None, {"far": 1}]),
    ],
)
def test_observations_are_in_their_space(space: Space[Any], fits: Any, misfits: list[Any]) -> None:
    """NumPy's errors name no level, and category -1 was taken for the last one."""
    assert not find_problem("reset", (fits, {}), space)
    for observation in misfits:
        assert "an observation" in find_problem("reset", (observation, {}), space)


def test_a_reward_must_be_a_number() -> None:
    assert not find_problem("step", (1, np.ones(1), False, False, {}), Discrete(3))
    for reward, kind in ((None, "None"), ("1", "str"), (np.array(["1.5"]), "ndarray")):
        problem = find_problem("step", (1, reward, False, False, {}), Discrete(3))
        assert "a number as reward" in problem and kind in problem
