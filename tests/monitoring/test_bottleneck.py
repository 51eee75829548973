"""What limits a run is told from the shares of time that its processes report."""

from __future__ import annotations

import pytest

from impala_tf.monitoring.metrics import ADVICE, bottleneck_of


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
        ((0.02, 0.5, 0.2, 0.3), "updates", ["98%", "30%"]),
        ((0.02, 0.5, 0.4, 0.05), "cores", ["98%", "95%"]),
        ((0.5, 0.6, 0.3, 0.0), "environments", ["60%", "50%"]),
        ((0.5, 0.2, 0.7, 0.0), "inference", ["70%", "50%"]),
        ((0.4, 0.3, 0.1, 0.6), "updates", ["60%", "40%"]),  # ppo
        ((0.9, 0.3, 0.1, 0.5), "environments", ["30%", "90%"]),
        ((0.9, 0.2, 0.1, 0.1), "transport", ["60%", "90%"]),
    ],
)
def test_the_largest_share_limits(
    shares: tuple[float, float, float, float], part: str, reason: list[str]
) -> None:
    found = bottleneck_of(row(*shares))
    assert found is not None and found[0] == part
    assert all(number in found[1] for number in reason)
    assert part in ADVICE


def test_learners_that_mostly_exchange_gradients_are_limited_by_that() -> None:
    shares = row(0.02, 0.5, 0.2, 0.3)
    for part, limit in ((0.4, "updates"), (0.6, "all-reduce")):
        found = bottleneck_of({**shares, "learner_all_reduce_fraction": part})
        assert found is not None and found[0] == limit


def test_an_older_row_does_not_tell() -> None:
    assert bottleneck_of({"learner_idle_fraction": 0.5}) is None
