"""Defaults that were measured for some algorithms and kinds of levels, and not for others."""

from __future__ import annotations

import itertools

from impala_tf import config as configs
from impala_tf.config import ALGORITHMS, Given
from impala_tf.types import Kind

KINDS: tuple[Kind, ...] = ("atari", "procgen", "image", "vector")


def test_observations_are_normalised_but_not_with_a3c_or_the_papers_preset() -> None:
    """Raw, a velocity of 0.07 is hardly seen, and a byte of 255 makes every tanh +-1."""
    for algorithm, kind in itertools.product((None, *ALGORITHMS), KINDS):
        agent = configs.resolve(Given({"algorithm": algorithm}), kind).agent
        expected = "none" if algorithm == "a3c" else "elementwise"
        assert agent.observation_normalization == expected
    paper = configs.resolve(Given({"preset": "paper"}), "vector").agent
    assert paper.observation_normalization == "none"


def test_the_kl_bounds_the_learning_rate_of_a_vector_levels_own_algorithm_only() -> None:
    """Robots, other algorithms and the paper were measured with a linear one."""
    schedules = {
        (kind, algorithm, continuous): configs.resolve(
            Given({"algorithm": algorithm}), kind, continuous
        ).optimizer.learning_rate_schedule
        for kind in KINDS
        for algorithm in (None, *ALGORITHMS)
        for continuous in (False, True)
    }
    bounded = {key for key, schedule in schedules.items() if schedule == "kl"}
    assert bounded == {("vector", None, False), ("vector", "appo", False)}
    paper = configs.resolve(Given({"preset": "paper"}), "vector")
    assert paper.optimizer.learning_rate_schedule == "linear"
