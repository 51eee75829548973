"""What callbacks may do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from impala_tf.callbacks import Callback
from impala_tf.learner.user_callbacks import UserCallbacks
from impala_tf.logdir import Logdir


def callbacks_of(folder: Path, *callbacks: Callback) -> UserCallbacks:
    return UserCallbacks(callbacks, Logdir(folder), lambda *added: None)


def test_one_that_raises_ends_the_run_with_its_name(tmp_path: Path) -> None:
    """One that ended its process looked like a run that had succeeded."""

    class Exits(Callback):
        def on_row(self, row: Any) -> Any:
            sys.exit()

    callbacks = callbacks_of(tmp_path, Exits())
    callbacks.write({"environment_frames": 100})
    assert callbacks.failure == callbacks.end_reason
    assert "Exits.on_row raised SystemExit: " in callbacks.failure
    assert f"({Path(__file__).name}, line " in callbacks.failure


def test_a_callback_learns_of_how_many_games_a_mean_is(tmp_path: Path) -> None:
    """Otherwise the lucky first game could end a run."""

    class Sees(Callback):
        def on_row(self, row: Any) -> None:
            seen.append(row["episode_return_games"])

    seen: list[int] = []
    callbacks = callbacks_of(tmp_path, Sees())
    for episodes in (0, 1, 250):
        callbacks.write({"environment_frames": 100, "episodes": episodes})
    assert seen == [0, 1, 100]


@pytest.mark.parametrize("value", ["hello", {"best": "high"}, {"best": [1, 2]}])
def test_what_is_no_metric_ends_the_run_with_the_callbacks_name(tmp_path: Path, value: Any) -> None:
    class Returns(Callback):
        def on_row(self, row: Any) -> Any:
            return value

    callbacks = callbacks_of(tmp_path, Returns())
    callbacks.write({"environment_frames": 100})
    assert "Returns.on_row raised" in callbacks.failure
