"""Values that follow from other flags."""

from __future__ import annotations

from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import Config, ConfigError, Given
from impala_tf.types import Kind


def resolved(kind: Kind, **flags: Any) -> Config:
    return configs.resolve(Given().replace(**flags), kind)


@pytest.mark.parametrize("kind", ["atari", "image"])
def test_a_linear_learning_rate_falls_although_the_algorithms_own_is_constant(kind: Kind) -> None:
    """The flag would change nothing if the rate ended where it starts."""
    linear: dict[str, Any] = {"algorithm": "dqn", "learning_rate_schedule": "linear"}
    assert resolved(kind, **linear).optimizer.learning_rate_end == 0.0
    assert resolved(kind, **linear, learning_rate=1.0).optimizer.learning_rate_end == 0.0
    assert resolved(kind, **linear, learning_rate_end=1e-5).optimizer.learning_rate_end == 1e-5
    usual = resolved(kind, algorithm="dqn").optimizer
    assert usual.learning_rate_end == usual.learning_rate


@pytest.mark.parametrize(
    "flags",
    [
        {"algorithm": "ppo", "num_actors": 1, "envs_per_actor": 1},
        {"algorithm": "ppo", "num_actors": 1, "envs_per_actor": 2},
        {"algorithm": "pqn", "batch_size": 2},
        {"algorithm": "pqn", "num_actors": 1, "envs_per_actor": 1, "synchronization": "trajectory"},
    ],
)
def test_a_small_batch_is_split_into_no_more_parts_than_it_has_unrolls(
    flags: dict[str, Any],
) -> None:
    """Nobody gave --minibatches, so nobody can be told that it is wrong."""
    config = resolved("vector", **flags)
    assert config.optimizer.minibatches == config.optimizer.batch_size
    configs.check_batches(config)
    given = resolved("vector", **flags, minibatches=3)
    with pytest.raises(ConfigError, match="^--minibatches=3: a batch has only "):
        configs.check_batches(given)
