"""What callbacks may do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from impala_tf.callbacks import Callback
from impala_tf.learner.user_callbacks import UserCallbacks
from impala_tf.logdir import Logdir


class Returns(Callback):
    """Returns the same for every row."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def on_row(self, row: Any) -> Any:
        return self._value


class Exits(Callback):
    def on_row(self, row: Any) -> Any:
        sys.exit()


def callbacks_of(folder: Path, *callbacks: Callback, added: Any = None) -> UserCallbacks:
    def add(*arguments: Any) -> None:
        if added is not None:
            added.append(arguments)

    return UserCallbacks(callbacks, Logdir(folder), add)


def test_one_that_raises_ends_the_run_with_its_name(tmp_path: Path) -> None:
    """One that ended its process looked like a run that had succeeded."""
    callbacks = callbacks_of(tmp_path, Exits())
    callbacks.write({"environment_frames": 100})
    assert callbacks.failure == callbacks.end_reason
    assert callbacks.failure.startswith("--callbacks: Exits.on_row raised SystemExit: ")
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


@pytest.mark.parametrize("value", ["hello", 3.0, ["a"], {"best": "high"}, {"best": [1, 2]}])
def test_what_is_no_metric_ends_the_run_with_the_callbacks_name(tmp_path: Path, value: Any) -> None:
    callbacks = callbacks_of(tmp_path, Returns(value))
    callbacks.write({"environment_frames": 100})
    assert callbacks.failure.startswith("--callbacks: Returns.on_row ")
    assert callbacks.failure.endswith(f"returned {value!r}")


def test_rows_stay_while_a_run_has_no_callbacks(tmp_path: Path) -> None:
    frames: int | None = None
    for number, callbacks in enumerate(([Returns({"best": 3})], [], [Returns({"best": 4})])):
        run = callbacks_of(tmp_path, *callbacks)
        run.rewind(frames)
        frames = 100 * (number + 1)
        run.write({"environment_frames": frames})
        run.close()
    rows = (tmp_path / "callback_metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["100", "300"]


@pytest.mark.parametrize("value", [None, {}, {"best": 3, 4: 5.5}])
def test_numbers_by_name_or_nothing_are_fine(tmp_path: Path, value: Any) -> None:
    added: list[Any] = []
    callbacks = callbacks_of(tmp_path, Returns(value), added=added)
    callbacks.write({"environment_frames": 100})
    callbacks.close()
    assert callbacks.end_reason == ""
    assert added == ([({"best": 3.0, "4": 5.5}, 100)] if value else [])
