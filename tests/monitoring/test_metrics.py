"""The metrics of a row: their names, averages over episodes, and what limits the run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from impala_tf.monitoring.metrics import ADVICE, METRICS, TENSORBOARD_TAGS, bottleneck_of
from impala_tf.monitoring.rows import EpisodeWindow
from impala_tf.types import Episode


def test_each_metric_has_a_curve_of_its_own() -> None:
    assert set(TENSORBOARD_TAGS) == set(METRICS)
    assert len(set(TENSORBOARD_TAGS.values())) == len(METRICS)


def test_the_mean_return_is_that_of_the_last_hundred_episodes() -> None:
    window = EpisodeWindow()
    assert window.row() == {
        "episodes": 0, "episode_return_mean": None, "episode_length_mean": None,
    }  # fmt: skip
    for game in range(150):
        window.add(Episode(episode_return=float(game), episode_length=10 * game))
    wanted = {"episodes": 150, "episode_return_mean": 99.5, "episode_length_mean": 995.0}
    assert window.row() == wanted

    resumed = EpisodeWindow()
    resumed.restore(json.loads(json.dumps(window.state())))
    assert resumed.row() == wanted
    numpy_return: Any = np.float32(1000.0)
    for each in (window, resumed):
        each.add(Episode(numpy_return, 0))
    assert resumed.row() == window.row()
    assert window.row()["episode_return_mean"] == pytest.approx(99.5 + (1000 - 50) / 100)
    json.dumps(window.state())


@pytest.mark.parametrize(
    ("shares", "all_reduce", "part", "reason"),
    [
        ((0.02, 0.5, 0.2, 0.3), 0.4, "updates", ["98%", "30%"]),
        ((0.02, 0.5, 0.2, 0.3), 0.6, "all-reduce", ["60%"]),
        ((0.02, 0.5, 0.4, 0.05), None, "cores", ["98%", "95%"]),
        ((0.5, 0.2, 0.7, 0.0), None, "inference", ["70%", "50%"]),
        ((0.4, 0.3, 0.1, 0.6), None, "updates", ["60%", "40%"]),  # ppo
        ((0.9, 0.3, 0.1, 0.5), None, "environments", ["30%", "90%"]),
        ((0.9, 0.2, 0.1, 0.1), None, "transport", ["60%", "90%"]),
    ],
)
def test_the_largest_share_limits(
    shares: tuple[float, ...], all_reduce: float | None, part: str, reason: list[str]
) -> None:
    """Of the time of a run's processes: idle learners, and environments, inference and waits."""
    columns = (
        "learner_idle_fraction",
        "actor_environment_fraction",
        "actor_inference_fraction",
        "actor_wait_fraction",
    )
    row = dict(zip(columns, shares, strict=True))
    found = bottleneck_of({**row, "learner_all_reduce_fraction": all_reduce})
    assert found is not None and found[0] == part
    assert all(number in found[1] for number in reason)
    assert part in ADVICE
