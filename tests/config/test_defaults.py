"""Values that follow from other flags."""

from __future__ import annotations

from typing import Any

import pytest

from impala_tf import config as configs
from impala_tf.config import Config, Given
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
