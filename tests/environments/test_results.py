"""Levels whose reset or step returns something else than it must."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from impala_tf.config import ConfigError
from impala_tf.environments import results, suites
from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.guarded import BrokenTooOftenError, GuardedEnvironment
from impala_tf.machine.supervision import RestartBudget
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
def test_a_wrapper_of_the_level_s_may_be_the_first_to_see_it(processes: str) -> None:
    with pytest.raises(ConfigError) as caught:
        play(LIMITED, processes, 1, fault="values")
    assert caught.value.problems == [f"--level_name={LIMITED}: {STEP}"]


def test_one_that_has_fitted_is_made_again() -> None:
    """A rare fault is no reason to end a run of days."""
    with pytest.raises(BrokenTooOftenError, match="broke 2 times.*ValueError"):
        play(MISFIT, "never", 20, fault="shape", at_step=5)
    assert play(MISFIT, "never", 6, fault="shape", at_step=5).restarts == 1


def test_parts_of_observations_are_named() -> None:
    from gymnasium.spaces import Box, Dict

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
