"""The metrics of a row: their names, averages over episodes, and rates."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from impala_tf.monitoring.metrics import METRICS, TENSORBOARD_TAGS
from impala_tf.monitoring.rows import EpisodeWindow, Rates
from impala_tf.types import Episode
from tests.helpers.clock import Clock

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


def test_rates_are_those_of_the_last_interval_without_restored_steps():
    clock = Clock(50.0)
    rates = Rates(1000, 4000, clock)
    clock.now = 60.0
    assert rates.row(1500, 6000) == {"agent_steps_per_s": 50.0, "frames_per_s": 200.0}
    clock.now = 62.0
    assert rates.row(1600, 6400) == {"agent_steps_per_s": 50.0, "frames_per_s": 200.0}
    assert rates.row(1600, 6400) == {"agent_steps_per_s": None, "frames_per_s": None}
