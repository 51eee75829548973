"""What limits a run is told from the shares of time that its processes report."""

from __future__ import annotations

import pytest

from impala_tf.monitoring.bottleneck import ADVICE, bottleneck_of


def row(idle: float, environment: float, inference: float, wait: float) -> dict[str, float]:
    return {
        "learner_idle_fraction": idle,
        "actor_environment_fraction": environment,
        "actor_inference_fraction": inference,
        "actor_wait_fraction": wait,
    }


@pytest.mark.parametrize(
    ("shares", "part", "reason"),
    [
        ((0.02, 0.5, 0.2, 0.3), "updates", "learner busy 98%, actors wait 30%"),
        ((0.02, 0.5, 0.4, 0.05), "cores", "nobody waits: learner busy 98%, actors 95%"),
        ((0.5, 0.6, 0.3, 0.0), "environments", "60% of the actors' time, learner idle 50%"),
        ((0.5, 0.2, 0.7, 0.0), "inference", "70% of the actors' time, learner idle 50%"),
        ((0.4, 0.3, 0.1, 0.6), "updates", "60% of the actors' time, learner idle 40%"),  # ppo
        ((0.9, 0.3, 0.1, 0.5), "environments", "30% of the actors' time, learner idle 90%"),
        ((0.9, 0.2, 0.1, 0.1), "transport", "60% of the actors' time, learner idle 90%"),
    ],
)
def test_the_largest_share_limits(
    shares: tuple[float, float, float, float], part: str, reason: str
) -> None:
    assert bottleneck_of(row(*shares)) == (part, reason)
    assert part in ADVICE


def test_learners_that_mostly_exchange_gradients_are_limited_by_that() -> None:
    shares = row(0.02, 0.5, 0.2, 0.3)
    found = [bottleneck_of({**shares, "learner_all_reduce_fraction": part}) for part in (0.4, 0.6)]
    assert found == [
        ("updates", "learner busy 98%, actors wait 30%"),
        ("all-reduce", "60% of the learners' time"),
    ]


def test_an_older_row_does_not_tell() -> None:
    assert bottleneck_of({"learner_idle_fraction": 0.5}) is None
