"""The metrics of a row: their names, averages over episodes, and rates."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from impala_tf.monitoring.metrics import METRICS, TENSORBOARD_TAGS
from impala_tf.monitoring.rows import EpisodeWindow
from impala_tf.types import Episode

# fmt: off
CONTRACT = [
    "wall_time_s", "agent_steps", "environment_frames", "learner_updates", "agent_steps_per_s",
    "frames_per_s", "episodes", "episode_return_mean", "episode_length_mean", "loss_total",
    "loss_policy_gradient", "loss_baseline", "entropy", "gradient_norm", "learning_rate",
    "policy_lag_mean", "policy_lag_max", "rho_clip_fraction", "queue_size", "learner_idle_fraction",
]


def test_no_column_that_users_read_by_name_is_missing():
    assert [name for name in METRICS if name in CONTRACT] == CONTRACT
    assert set(TENSORBOARD_TAGS) == set(METRICS)
    assert len(set(TENSORBOARD_TAGS.values())) == len(METRICS)
    assert TENSORBOARD_TAGS["episode_return_mean"] == "episode/return_mean"


def test_the_mean_return_is_that_of_the_last_hundred_episodes():
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
