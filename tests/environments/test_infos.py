"""--info_metrics: the numbers that an episode's last info has, whatever makes the environments."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from impala_tf.environments.batched import BatchedEnvironment
from impala_tf.environments.infos import InfoMetrics, only_numbers
from impala_tf.environments.many_levels import ManyLevels
from impala_tf.types import ActionSpec

NAMES = ("score", "end/distance", "nowhere")


class Tells(gymnasium.Env):
    """Ends after `length` steps; its last info tells what it was made with."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int, score: float) -> None:
        self._length, self._score, self._at = length, score, 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        self._at = 0
        return np.zeros(2, np.float32), {"score": -1.0}

    def step(self, action: int):
        self._at += 1
        over = self._at == self._length
        info = {"score": self._score, "end": {"distance": 2 * self._length}} if over else {}
        return np.zeros(2, np.float32), 1.0, over, False, {**info, "map": "forest"}


def told(vector, steps=4, infos=None):
    environment = BatchedEnvironment(lambda: vector, 1, infos or InfoMetrics(NAMES))
    environment.reset()
    for _ in range(steps):
        environment.step(np.zeros(vector.num_envs, np.int32))
    environment.close()
    return {episode.environment: episode.info for episode in environment.pop_episodes()}


BOTH = [functools.partial(Tells, 2, 0.5), functools.partial(Tells, 3, 7.0)]


def many_levels(both):
    parts = [SyncVectorEnv([one]) for one in both]
    return ManyLevels(parts, [0, 1], ActionSpec("discrete", (2,)))


@pytest.mark.parametrize(
    "vectorize", [SyncVectorEnv, AsyncVectorEnv, many_levels], ids=["one", "many", "levels"]
)
def test_numbers_of_the_last_info_are_those_of_an_episode(vectorize):
    """Not those of the reset that follows; in one process, in many, and of several levels."""
    assert told(vectorize(BOTH), steps=3) == {0: (0.5, 4.0, None), 1: (7.0, 6.0, None)}


def test_values_of_any_kind_reach_nobody_but_numbers_do():
    """Vector environments make arrays of infos, which fails where a value changes its type."""
    odd: dict[Any, Any] = {
        "score": 3, "none": None, "text": "a", 7: 1, "array": np.zeros(2), "small": np.array(2),
        "end": {"distance": np.float32(4.0), "map": "forest"}, "empty": {"name": "b"},
    }  # fmt: skip
    assert only_numbers(odd) == {"score": 3.0, "small": 2.0, "end/distance": 4.0}


def test_a_name_that_is_missing_is_named_once_with_those_that_are_there(caplog):
    told(SyncVectorEnv(BOTH), steps=9, infos=InfoMetrics(NAMES, "forest"))
    (record,) = caplog.records
    said = record.getMessage()
    assert all(word in said for word in ("forest", "nowhere", "end/distance, score")), said
