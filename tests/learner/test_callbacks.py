"""What callbacks may return."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from impala_tf.callbacks import Callback
from impala_tf.learner.callbacks import Callbacks, KeepBest, SmallReturns
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


@pytest.mark.parametrize("is_own", [True, False])
def test_one_that_raises_ends_the_run_with_its_name(tmp_path: Path, is_own: bool) -> None:
    """One that ended its process looked like a run that had succeeded."""
    callbacks = Callbacks([Exits()] * is_own, [Exits()] * (not is_own), Logdir(tmp_path))
    callbacks.write({"environment_frames": 100})
    assert callbacks.stopping
    assert "Exits.on_row raised SystemExit: " in callbacks.failure
    assert f"({Path(__file__).name}, line " in callbacks.failure
    assert callbacks.failure.startswith("--callbacks: ") == is_own, "it is said whose it is"


def test_a_callback_learns_of_how_many_games_a_mean_is(tmp_path: Path) -> None:
    """Otherwise the lucky first game could end a run."""

    class Sees(Callback):
        def on_row(self, row: Any) -> None:
            seen.append(row["episode_return_games"])

    seen: list[int] = []
    callbacks = Callbacks([Sees()], [], Logdir(tmp_path))
    for episodes in (0, 1, 250):
        callbacks.write({"environment_frames": 100, "episodes": episodes})
    assert seen == [0, 1, 100]


@pytest.mark.parametrize(
    ("games", "largest", "lines"), [(100, 0.05, 1), (99, 0.05, 0), (100, 0.0, 0), (100, 0.2, 0)]
)
def test_returns_below_the_smallest_unit_are_told_once(
    games: int, largest: float, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a run learns little, and was silent. Returns of 0 are a level with rare rewards."""
    callback = SmallReturns(lambda: largest, 0.1)
    for _ in range(3):
        callback.on_row({"episodes": games})
    told = [record.getMessage() for record in caplog.records if getattr(record, "for_user", False)]
    assert len(told) == lines
    assert all("0.05" in line and "--value_normalization" in line for line in told)


@pytest.mark.parametrize("value", ["hello", 3.0, ["a"], {"best": "high"}, {"best": [1, 2]}])
def test_what_is_no_metric_ends_the_run_with_the_callbacks_name(tmp_path: Path, value: Any) -> None:
    callbacks = Callbacks([Returns(value)], [], Logdir(tmp_path))
    callbacks.write({"environment_frames": 100})
    assert callbacks.stopping
    assert callbacks.failure.startswith("--callbacks: Returns.on_row ")
    assert callbacks.failure.endswith(f"returned {value!r}")


def test_rows_stay_while_a_run_has_no_callbacks(tmp_path: Path) -> None:
    def of(*own: Callback) -> Callbacks:
        return Callbacks(own, [], Logdir(tmp_path))

    first = of(Returns({"best": 3}))
    first.rewind(None)
    first.write({"environment_frames": 100})
    first.close()
    second = of()
    second.rewind(100)
    second.write({"environment_frames": 200})
    second.close()
    third = of(Returns({"best": 4}))
    third.rewind(200)
    third.write({"environment_frames": 300})
    third.close()
    rows = (tmp_path / "callback_metrics.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["100", "300"]


def test_half_a_copy_of_the_best_checkpoint_is_removed(tmp_path: Path, monkeypatch: Any) -> None:
    """On a full disk, copies under new names would keep it full."""
    checkpoint = tmp_path / "checkpoints" / "ckpt-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "variables").write_text("whole")

    def half(source: Path, folder: Path) -> None:
        (folder / source.name).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", half)
    best = KeepBest(Logdir(tmp_path))
    best.on_row({"episode_return_mean": 1.0, "episodes": 1000})
    with pytest.raises(OSError, match="No space") as caught:
        best.on_checkpoint(checkpoint)
    assert caught.value.strerror == "No space left on device", "the display would show a list"
    assert list((tmp_path / "best").iterdir()) == []

    class Told(Callback):
        paths: list[Path] = []

        def on_checkpoint(self, path: Path) -> None:
            self.paths.append(path)

    with pytest.raises(OSError, match="No space"):
        Callbacks([], [best, Told()], Logdir(tmp_path)).on_checkpoint(str(checkpoint))
    assert Told.paths == [checkpoint], "the mirror is not told of a checkpoint"


@pytest.mark.parametrize("value", [None, {}, {"best": 3, 4: 5.5}])
def test_numbers_by_name_or_nothing_are_fine(tmp_path: Path, value: Any) -> None:
    added: list[Any] = []
    logdir = Logdir(tmp_path)
    callbacks = Callbacks([Returns(value)], [], logdir, lambda *added_: added.append(added_))
    callbacks.write({"environment_frames": 100})
    callbacks.close()
    assert not callbacks.stopping
    assert added == ([({"best": 3.0, "4": 5.5}, 100)] if value else [])
