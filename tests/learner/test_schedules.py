"""The learning rate and the entropy cost over a run."""

from __future__ import annotations

from typing import Any

import pytest

from impala_tf.learner.optimizers import Schedules
from tests.helpers.samples import resolved_config


def schedules(**flags: Any) -> Schedules:
    return Schedules(resolved_config(total_environment_frames=1000, learning_rate=0.1, **flags))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [0.1, 0.05, 0.0, 0.0]),
        ({"learning_rate_end": 0.02}, [0.1, 0.06, 0.02, 0.02]),
        ({"learning_rate_schedule": "constant"}, [0.1, 0.1, 0.1, 0.1]),
        ({"schedule_frames": 2000}, [0.1, 0.075, 0.05, 0.025]),
        ({"learning_rate_schedule": "kl"}, [0.1, 0.05, 0.0, 0.0]),
    ],
)
def test_the_learning_rate_over_the_frames(flags: dict[str, Any], expected: list[float]) -> None:
    """Also past the last frame: a group may need one more update."""
    found = [schedules(**flags).learning_rate(frames) for frames in (0, 500, 1000, 1500)]
    assert found == pytest.approx(expected)


def test_the_entropy_cost_over_the_frames() -> None:
    falling = schedules(entropy_cost=0.01, entropy_cost_end=0.002)
    assert [falling.entropy_cost(frames) for frames in (0, 250, 1000, 2000)] == pytest.approx(
        [0.01, 0.008, 0.002, 0.002]
    )
    assert schedules(entropy_cost=0.3).entropy_cost(999) == pytest.approx(0.3)


def test_the_learning_rate_adapts_to_the_kl_divergence() -> None:
    adaptive = schedules(learning_rate_schedule="kl")
    # Above 0.02 nats it falls, below 0.005 it rises, and it never gets above its start.
    low = 0.1 / 1.5
    for kl, expected in ((0.021, low), (0.019, low), (0.006, low), (0.004, 0.1), (0.001, 0.1)):
        adaptive.observe_kl(kl)
        assert adaptive.learning_rate(0) == pytest.approx(expected)
    for _ in range(100):
        adaptive.observe_kl(1.0)
    assert adaptive.learning_rate(0) == pytest.approx(0.01)
    assert adaptive.learning_rate(500) == pytest.approx(0.005)  # of what is linear
