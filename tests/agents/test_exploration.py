"""Which random actions environments take, and how often."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from impala_tf.agents.distributions import EpsilonGreedy
from impala_tf.agents.exploration import epsilon_ladder, epsilons_of, reported_environments
from impala_tf.environments import suites


def test_the_ladder_is_that_of_ape_x() -> None:
    """Its epsilon_i = epsilon ^ (1 + alpha i / (N - 1)), over all environments of the run."""
    parts = [epsilon_ladder(3, actor, 2) for actor in range(2)]
    expected = [0.4 ** (1 + 7 * i / 5) for i in range(6)]
    np.testing.assert_allclose(np.sort(np.concatenate(parts))[::-1], expected, rtol=1e-6)
    assert all(part.max() > 0.1 and part.min() < 0.01 for part in parts), "each has a whole ladder"


def test_each_environment_explores_as_often_as_its_epsilon_says() -> None:
    epsilons = np.array([0.0, 0.3, 1.0], np.float32)
    generator = tf.random.Generator.from_seed(1)
    row = [0.0, 2.0, 1.0, -1.0]
    many = EpsilonGreedy(4, np.repeat(epsilons, 4000))
    actions = many.sample(tf.constant([row] * 12_000), generator).numpy().reshape(3, 4000)
    counts = np.array([np.bincount(each, minlength=4) for each in actions]) / 4000
    expected = epsilons[:, None] / 4 + (1 - epsilons[:, None]) * np.eye(4)[1]
    np.testing.assert_allclose(counts, expected, atol=0.03)


@pytest.mark.parametrize(
    ("count", "num_envs", "num_actors"),
    [(57, 8, 8), (16, 16, 4), (4, 8, 1), (2, 8, 1), (3, 4, 8), (4, 1, 8), (2, 4, 0)],
)
def test_each_of_several_levels_has_a_ladder(count: int, num_envs: int, num_actors: int) -> None:
    """Otherwise one level would only be explored, and another one only be played."""
    epsilons: dict[int, list[float]] = {level: [] for level in range(count)}
    told = set()
    for actor in range(max(num_actors, count if num_actors == 0 else 1)):
        mine = suites.assigned(count, actor, num_actors)
        parts = [len(range(k, num_envs, len(mine))) for k in range(len(mine))]
        levels = np.repeat(mine, parts)
        found = epsilons_of(levels, count, actor, num_actors)
        told |= set(levels[reported_environments(found, levels)])
        for level, epsilon in zip(levels, found, strict=True):
            epsilons[level].append(float(epsilon))
    assert told == set(range(count)), "every level has games that are reported"
    for ladder in epsilons.values():
        steps = np.linspace(0, 1, len(ladder)) if len(ladder) > 1 else np.array([0.5])
        np.testing.assert_allclose(sorted(ladder, reverse=True), 0.4 ** (1 + 7 * steps), rtol=1e-5)
