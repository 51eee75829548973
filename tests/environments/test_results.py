"""Levels whose reset or step returns something else than it must."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from impala_tf.config import ConfigError
from impala_tf.environments import results, suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guarded import BrokenTooOftenError, GuardedEnvironment
from impala_tf.machine.restart_budget import RestartBudget
from tests.helpers.games import BROKEN_WORLDS, level

MISFIT, LIMITED = f"{BROKEN_WORLDS}:MisfitCartPole", f"{BROKEN_WORLDS}:limited"
STEP = "step must return 5 values (observation, reward, terminated, truncated, info)"


def play(name: str, processes: str, steps: int, **settings: Any) -> GuardedEnvironment:
    """Plays in two environments, as an actor does; may make them again once."""
    env = level(name, level_kwargs=json.dumps(settings), environment_processes=processes)
    environment = GuardedEnvironment(
        lambda attempt: BatchedEnvironment(suites.make(env, 2, attempt)), [name], 60,
        budget=RestartBudget(1), first_pause_s=0, proven_after=100,
    )  # fmt: skip
    try:
        environment.reset()
        for _ in range(steps):
            environment.step(np.ones(2, np.int32))
    finally:
        environment.close()
    return environment


@pytest.mark.parametrize("processes", ["auto", "always", "never"])
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"fault": "shape"},
            "step returned an observation of shape (3,), but its observation_space has the shape"
            " (4,)",
        ),
        ({"fault": "none", "method": "reset"}, "reset returned None as an observation"),
        ({"fault": "values"}, f"{STEP}, but returned 4"),
        (
            {"fault": "values", "method": "reset"},
            "reset must return 2 values (observation, info), but returned 1",
        ),
        ({"fault": "info"}, "step must return a dictionary as info, but returned str"),
    ],
)
def test_a_level_that_never_fits_is_refused_in_one_line(
    processes: str, settings: dict[str, str], problem: str
) -> None:
    """Making it again would not help, and what vector environments say names nothing."""
    with pytest.raises(ConfigError) as caught:
        play(MISFIT, processes, 1, **settings)
    assert caught.value.problems == [f"--level_name={MISFIT}: {problem}"]


@pytest.mark.parametrize("processes", ["always", "never"])
@pytest.mark.parametrize("fault", ["values", "nothing"])
def test_a_wrapper_of_the_level_s_may_be_the_first_to_see_it(processes: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        play(LIMITED, processes, 1, fault=fault)
    assert caught.value.problems == [f"--level_name={LIMITED}: {STEP}"]


def test_one_that_has_fitted_is_made_again() -> None:
    """A rare fault is no reason to end a run of days."""
    with pytest.raises(BrokenTooOftenError, match="broke 2 times.*ValueError"):
        play(MISFIT, "never", 20, fault="shape", at_step=5)
    assert play(MISFIT, "never", 6, fault="shape", at_step=5).restarts == 1


def test_parts_of_observations_are_named() -> None:
    space = Dict({"far": Dict({"eye": Box(0, 1, (2,))}), "near": Box(0, 1, (3,))})
    near, far = np.zeros(3), {"eye": np.zeros(2)}
    results.check("reset", ({"far": far, "near": near}, {}), space)
    for observation, problem in (
        (near, "reset returned ndarray as an observation, but its observation_space is a dict"),
        ({"near": near}, "reset returned an observation without 'far'"),
        ({"far": {"eye": near}, "near": near}, "'eye' of 'far' of an observation of shape"),
    ):
        with pytest.raises(results.LevelError) as caught:
            results.check("reset", (observation, {}), space)
        assert problem in str(caught.value)
    both = Tuple([Box(0, 1, (2,)), Discrete(3)])
    results.check("reset", ((np.zeros(2), 1), {}), both)
    record = np.zeros((), [("near", np.float32, 3)])[()]  # has names, and is no dictionary
    results.check("reset", (record, {}), Dict({"near": Box(0, 1, (3,))}))
    for misfit, space_of_it, problem in (
        ((np.zeros(3), 1), both, "part 0 of an observation of shape (3,)"),
        ((np.zeros(2),), both, "is not a tuple of 2"),
        ([1, [2, 3]], Box(0, 1, (2,)), "an observation that is not an array"),
        (None, Discrete(3), "None as an observation"),
    ):
        with pytest.raises(results.LevelError) as caught:
            results.check("reset", (misfit, {}), space_of_it)
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("space", "fitting", "misfits"),
    [
        (Discrete(3), [2, True, np.int64(0), np.ones(1, int)], [-1, 3, 1.0, "a", [1, 2]]),
        (Discrete(3, start=1), [1, 3], [0]),
        (MultiDiscrete([2, 3]), [(1, 2), np.zeros(2, np.uint8)], [(2, 0), (0, -1), (0,), [0.5, 0]]),
        (MultiBinary(3), [[0, 1, 1], np.ones(3, bool)], [[0, 1], [0, 1, 2]]),
        (Box(0, 255, (2, 2), np.uint8), [np.zeros((2, 2), np.uint8)], [np.zeros((2, 2), int)]),
        (Box(0, 9, (2,), np.int32), [np.zeros(2, np.uint8)], [np.zeros(2), ["a", "b"]]),
        (Box(0, 1, (2,), np.float32), [[0, 1], np.zeros(2), np.array([9, 9])], [["a", "b"]]),
        (Box(0, 9, (4, 4, 3), np.int32), [np.zeros((4, 4, 3))], []),  # is scaled to uint8
    ],
)
def test_observations_are_in_their_space(
    space: Space[Any], fitting: list[Any], misfits: list[Any]
) -> None:
    """NumPy's errors name no level, and category -1 was taken for the last one."""
    for observation in fitting:
        results.check("reset", (observation, {}), space)
    for observation in misfits:
        with pytest.raises(results.LevelError, match="an observation.*its observation_space"):
            results.check("reset", (observation, {}), space)


def test_a_reward_must_be_a_number() -> None:
    results.check("step", (1, np.ones(1), False, False, {}), Discrete(3))
    for reward, kind in ((None, "None"), ("1", "str"), (np.array(["1.5"]), "ndarray")):
        with pytest.raises(results.LevelError, match=f"a number as reward, but returned {kind}"):
            results.check("step", (1, reward, False, False, {}), Discrete(3))
